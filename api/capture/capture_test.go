package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"boxgate/policy"
)

const mib = 1 << 20

func open(t *testing.T, b *Budget, box string) *Answer {
	t.Helper()
	a, err := b.Open(t.Context(), policy.BoxID(box))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	return a
}

// Output that takes six times as many bytes in JSON stays within the limit of the answer.
func TestOutputIsCountedAsItIsAnswered(t *testing.T) {
	t.Parallel()
	b := New(mib)
	for _, line := range []string{strings.Repeat("\x00", 1000), strings.Repeat("<&>", 333), "plain\n", "\"\\", "caf\u00e9\n"} {
		a := open(t, b, "box")
		o := a.Output(20_000)
		for range 10_000 {
			_, _ = o.Write([]byte(line))
		}
		kept, noted := strings.CutSuffix(o.Text(), CutNote)
		if !noted {
			t.Errorf("%.10q: the text does not end with the note", line)
		}
		text, err := json.Marshal(kept)
		if err != nil || len(text) > 20_100 || len(text) < 18_000 || !o.Cut() {
			t.Errorf("%.10q: %d bytes of JSON, cut %v, %v", line, len(text), o.Cut(), err)
		}
		if held := b.InUse(); held > 20_000 || held < Least {
			t.Errorf("%.10q: %d bytes are held", line, held)
		}
		a.close()
	}
	if b.InUse() != 0 || len(b.boxes) != 0 {
		t.Errorf("%d bytes are held by %d boxes", b.InUse(), len(b.boxes))
	}
}

// Many commands of many boxes print as much as they can at the same time. Together they stay within the budget, and each
// gets at least a little.
func TestManyOutputsStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	b := New(16 * mib)
	var all sync.WaitGroup
	outputs := make([]*Output, 200)
	for i := range outputs {
		outputs[i] = open(t, b, fmt.Sprint("box", i%7)).Output(4 * mib)
	}
	for _, o := range outputs {
		all.Go(func() {
			for range 64 {
				_, _ = o.Write(make([]byte, 16<<10))
			}
		})
	}
	all.Wait()
	sum := 0
	for i, o := range outputs {
		size := len(o.Text()) * len(`\u0000`)
		if size == 0 || !o.Cut() {
			t.Errorf("number %d keeps %d bytes, cut %v", i, size, o.Cut())
		}
		sum += size
	}
	if sum > 16*mib || sum < 8*mib || b.InUse() > 16*mib {
		t.Errorf("%d bytes are kept, and %d counted, of %d", sum, b.InUse(), 16*mib)
	}
}

// A box that takes as much as it can leaves space for others. Its further answers are refused before any work is done for
// them.
func TestOneBoxLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	b := New(4 * mib)
	for range 100 {
		a, err := b.Open(t.Context(), "hoarder")
		if errors.Is(err, ErrFull) {
			break
		}
		_, _ = a.Output(mib).Write(make([]byte, mib))
	}
	if held := b.InUse(); held > 2*mib || held < mib {
		t.Errorf("one box holds %d bytes of %d", held, 4*mib)
	}
	if o := open(t, b, "other").Output(mib); !writes(o, 512<<10) {
		t.Error("another box finds no room")
	}
}

func writes(o *Output, n int) bool {
	_, _ = o.Write([]byte(strings.Repeat("x", n)))
	return !o.Cut()
}

// The memory of an answer is released when its context ends, even if a writer still uses it.
func TestAnswersEndWithTheirContext(t *testing.T) {
	t.Parallel()
	b := New(mib)
	ctx, cancel := context.WithCancel(t.Context())
	a, err := b.Open(ctx, "box")
	if err != nil {
		t.Fatal(err)
	}
	o := a.Output(mib)
	if !writes(o, 100_000) || !a.Reserve(50_000) || b.InUse() != 150_000 {
		t.Fatalf("%d bytes are held", b.InUse())
	}
	if a.Clear(); b.InUse() != Least {
		t.Errorf("%d bytes are held of what was cleared", b.InUse())
	}
	o = a.Output(mib)
	writes(o, 100_000)
	cancel()
	for b.InUse() != 0 {
		_, _ = o.Write([]byte("more"))
	}
	a.Clear()
	if _, _ = a.Output(mib).Write([]byte("x")); a.Reserve(1) || strings.TrimSuffix(o.Text(), CutNote) != "" || b.InUse() != 0 || len(b.boxes) != 0 {
		t.Errorf("an answer that has ended holds %d bytes, %q", b.InUse(), o.Text())
	}
}

func TestReadAll(t *testing.T) {
	t.Parallel()
	b := New(mib)
	for expected, size := range map[int64]int{0: 0, 1: 1, 1000: 1000, 100: 50_000, 200_000: 7} {
		a := open(t, b, "box")
		data, err := a.ReadAll(strings.NewReader(strings.Repeat("x", size)), expected)
		if err != nil || len(data) != size || b.InUse() < cap(data) {
			t.Errorf("%d bytes, %d expected: %d bytes, %d counted, %v", size, expected, len(data), b.InUse(), err)
		}
		a.close()
	}
	for expected, r := range map[int64]io.Reader{mib: strings.NewReader(""), 10: strings.NewReader(strings.Repeat("x", mib))} {
		if _, err := open(t, b, "box").ReadAll(r, expected); !errors.Is(err, ErrFull) {
			t.Errorf("%d bytes expected: %v", expected, err)
		}
	}
	if _, err := open(t, b, "box").ReadAll(io.MultiReader(strings.NewReader("x"), broken{}), 10); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a reader that fails: %v", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestZeroBudgetHasNoRoom(t *testing.T) {
	t.Parallel()
	if _, err := new(Budget).Open(t.Context(), "box"); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
}
