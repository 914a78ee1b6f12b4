package memory

import (
	"fmt"
	"sync"
	"testing"
)

const mib = 1 << 20

// An account that takes all it can leaves memory for later accounts that need little, and the total is never exceeded.
func TestHoardersLeaveRoomForTheOthers(t *testing.T) {
	t.Parallel()
	b := New(256*mib, 256*mib)
	hoard := func(name string) {
		a := b.Account(name)
		for range 2 * b.Total() >> 16 {
			if !a.Acquire(Streams, 64<<10) {
				return
			}
		}
	}
	hoard("first")
	if held := b.Account("first").InUse(); held < 190*mib || held > 200*mib {
		t.Errorf("the first holds %d MiB of 256", held/mib)
	}
	for i := range 15 {
		hoard(fmt.Sprint("later ", i))
	}
	for i := range 10 {
		if a := b.Account(fmt.Sprint("honest ", i)); !a.Acquire(TLS, mib/2) {
			t.Errorf("no room for number %d; %d MiB are held", i, b.inUse.Load()/mib)
		}
	}
	if held := b.inUse.Load(); held > b.Total() {
		t.Errorf("%d bytes are held of %d", held, b.Total())
	}
}

func TestOneAccountIsLimited(t *testing.T) {
	t.Parallel()
	b := New(100*mib, 8*mib)
	a := b.Account("box")
	for range 7 * 4 {
		if !a.Acquire(Buffers, mib/4) {
			t.Error("less than the limit of one account is refused")
		}
	}
	if a.Acquire(Buffers, mib/4) {
		t.Error("large pieces leave nothing for small ones")
	}
	for range 8 {
		if !a.Acquire(Connections, mib/8) {
			t.Error("there is nothing left for small pieces")
		}
	}
	if a.Acquire(Connections, 1) {
		t.Error("the limit of one account is not kept")
	}
	if b.InUse(Buffers) != 7*mib || b.InUse(Connections) != mib || b.InUse(TLS) != 0 {
		t.Errorf("held %d and %d", b.InUse(Buffers), b.InUse(TLS))
	}
	a.Release(Buffers, 7*mib)
	if !a.Acquire(TLS, mib) {
		t.Error("what was given back is not there")
	}
}

func TestZeroValuesGrantNothing(t *testing.T) {
	t.Parallel()
	var none *Account
	var c Claim
	if none.Acquire(TLS, 1) || new(Account).Acquire(TLS, 1) || c.Grow(1) || New(0, 0).Account("box").Acquire(TLS, 1) {
		t.Error("something is granted")
	}
	c.Release()
}

func TestClaimsGiveBackOnce(t *testing.T) {
	t.Parallel()
	b := New(mib, mib)
	var c Claim
	c.Open(b.Account("box"), FirstBytes)
	if !c.Grow(100) || !c.Grow(200) {
		t.Fatal("not granted")
	}
	c.Shrink(50)
	c.Release()
	c.Release()
	if c.Close(); c.Grow(1) {
		t.Error("a claim that was closed grows")
	}
	if b.inUse.Load() != 0 || b.InUse(FirstBytes) != 0 || b.Account("box").InUse() != 0 {
		t.Errorf("left: %d, %d", b.inUse.Load(), b.InUse(FirstBytes))
	}
}

// Many concurrent accounts never exceed the total, and release everything.
func TestConcurrentAccounts(t *testing.T) {
	t.Parallel()
	b := New(8*mib, 4*mib)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			a := b.Account(fmt.Sprint(i % 5))
			for n := range 2000 {
				size := 1 + n*7919%mib
				if a.Acquire(Kind(n%int(kinds)), size) {
					if b.inUse.Load() > b.Total() || a.InUse() > 4*mib+16*mib {
						t.Error("more is held than there is")
					}
					a.Release(Kind(n%int(kinds)), size)
				}
			}
		})
	}
	all.Wait()
	for _, k := range Kinds() {
		if b.InUse(k) != 0 {
			t.Errorf("%s: %d left", k, b.InUse(k))
		}
	}
	if b.inUse.Load() != 0 {
		t.Errorf("%d left", b.inUse.Load())
	}
}

func BenchmarkAcquire(b *testing.B) {
	budget := New(1<<40, 1<<40)
	b.RunParallel(func(pb *testing.PB) {
		a := budget.Account("box")
		for pb.Next() {
			if a.Acquire(Streams, 1000) {
				a.Release(Streams, 1000)
			}
		}
	})
}

// TestLimitOfOneAccountCanChange: an account follows its current limit: it gets more when the limit has risen, nothing
// new when it has fallen below the usage, and never more than the total.
func TestLimitOfOneAccountCanChange(t *testing.T) {
	t.Parallel()
	own := int64(2 * mib)
	b := New(100*mib, 8*mib)
	a := b.AccountOf("box", func(int64) int64 { return own })
	take := func() (n int64) {
		for a.Acquire(Buffers, mib/8) {
			n += mib / 8
		}
		return n
	}
	if n := take(); n != 2*mib {
		t.Errorf("%d bytes are granted, want %d", n, 2*mib)
	}
	own = 16 * mib
	if n := take(); n != 14*mib {
		t.Errorf("%d bytes more are granted, want %d", n, 14*mib)
	}
	own = mib
	a.Release(Buffers, 15*mib)
	if a.Acquire(Buffers, 1) {
		t.Error("an account at its new limit gets more")
	}
	own = 1000 * mib
	if n := take(); n > 99*mib {
		t.Errorf("%d bytes are granted of a total of %d", n, b.Total())
	}
	if got := b.Account("other"); !got.Acquire(TLS, mib/8) {
		t.Error("nothing is left for another account")
	}
}
