package observe

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"boxgate/policy"
	"boxgate/store/pages"
)

// The file has a bucket for each box, whose keys are digests of [Key] and whose values are observations in JSON. The
// empty key has the totals.
var totalsKey = []byte{0}

// totals is the record of a box next to its observations.
type totals struct {
	Allowed  int       `json:"allowed,omitempty"` // observations of allowed decisions
	Denied   int       `json:"denied,omitempty"`
	Bytes    int64     `json:"bytes,omitempty"` // of all observations, encoded
	Overflow uint64    `json:"overflow,omitempty"`
	Lost     uint64    `json:"lost,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// count returns the counter of observations with a verdict, and its maximum. Denied decisions cost a box nothing, so they
// have at most half of the places.
func (t *totals) count(v policy.Verdict) (n *int, most int) {
	if v == policy.Allow {
		return &t.Allowed, MaxPerBox - t.Denied
	}
	return &t.Denied, min(MaxPerBox/2, MaxPerBox-t.Allowed)
}

// file is the file of observations. Not safe for concurrent use, except that reads may run at any time.
type file struct {
	db *bolt.DB
}

// DamagedSuffix is appended to the name of a damaged file.
const DamagedSuffix = ".damaged"

// openFile opens a file, or creates it. A damaged file is set aside; the error then is nil, and aside is its new name. A file
// that cannot be opened or read for another reason, such as a lack of descriptors, stays.
func openFile(path string, wait time.Duration) (f *file, aside string, err error) {
	db, err := openOrCreate(path, wait)
	if errno := syscall.Errno(0); err != nil && !errors.Is(err, berrors.ErrTimeout) && !errors.As(err, &errno) {
		aside = path + DamagedSuffix
		if renamed := os.Rename(path, aside); renamed != nil {
			return nil, "", err
		}
		db, err = openOrCreate(path, wait)
	}
	if err != nil {
		return nil, "", err
	}
	return &file{db}, aside, nil
}

// openOrCreate opens an intact file, or creates one. bbolt itself can fault on a damaged file.
func openOrCreate(path string, wait time.Duration) (*bolt.DB, error) {
	// A map that is large enough from the start saves copying what a transaction has read when the file outgrows the map.
	o := bolt.Options{Timeout: wait, FreelistType: bolt.FreelistMapType, InitialMmapSize: 64 << 20}
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		return pages.Open(path, o)
	}
	return bolt.Open(path, 0o600, &o)
}

func (f *file) close() error { return f.db.Close() }

// digest returns the database key of an observation.
func digest(k *Key) []byte {
	b := make([]byte, 0, 512)
	text := func(s string) { b = append(strconv.AppendQuote(b, s), ' ') }
	number := func(n uint64) { b = append(strconv.AppendUint(b, n, 10), ' ') }
	text(string(k.Stage))
	text(string(k.Protocol))
	text(k.Name)
	b = append(append(b, k.Addr.String()...), ' ')
	number(uint64(k.Port))
	text(k.Method)
	text(k.Shape)
	number(uint64(k.Verdict))
	text(string(k.Action))
	text(string(k.Reason))
	text(k.Rule)
	text(k.Opening)
	text(k.Source)
	sum := sha256.Sum256(strconv.AppendBool(b, k.Proxied))
	return sum[:16]
}

// write adds the decisions since the last call, in one transaction.
func (f *file) write(boxes map[policy.BoxID]*recent) error {
	return f.db.Update(func(tx *bolt.Tx) error {
		for id, r := range boxes {
			b, err := tx.CreateBucketIfNotExists([]byte(id))
			if err != nil {
				return err
			}
			if err := writeBox(b, r); err != nil {
				return fmt.Errorf("box %s: %w", id, err)
			}
		}
		return nil
	})
}

// writeBox adds the decisions about one box.
func writeBox(b *bolt.Bucket, r *recent) error {
	t := readTotals(b)
	t.Overflow += r.overflow
	t.Lost += r.lost
	for _, o := range r.sums {
		if err := t.merge(b, o); err != nil {
			return err
		}
	}
	return t.put(b)
}

// merge adds one observation. Beyond the bounds of a box, its decisions are counted as overflow.
func (t *totals) merge(b *bolt.Bucket, o *Observation) error {
	key := digest(&o.Key)
	old := b.Get(key)
	sum := *o
	if n, most := t.count(o.Verdict); old == nil {
		if *n >= most {
			t.Overflow += o.Count
			return nil
		}
		*n++
	} else if before, err := decode(old); err == nil && before.Key == o.Key {
		before.add(o)
		sum = before
	}
	value, err := json.Marshal(&sum)
	if err != nil {
		return err
	}
	t.Bytes += int64(len(value) - len(old))
	return b.Put(key, value)
}

func (t *totals) put(b *bolt.Bucket) error {
	value, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return b.Put(totalsKey, value)
}

// readTotals returns the totals of a box. Unreadable ones are counted again.
func readTotals(b *bolt.Bucket) (t totals) {
	if value := b.Get(totalsKey); value != nil && json.Unmarshal(value, &t) == nil {
		return t
	}
	t = totals{}
	_ = each(b, func(_, value []byte, o Observation) {
		n, _ := t.count(o.Verdict)
		*n++
		t.Bytes += int64(len(value))
	})
	return t
}

func decode(value []byte) (o Observation, err error) {
	err = json.Unmarshal(value, &o)
	return o, err
}

// each calls do for every observation that can be read.
func each(b *bolt.Bucket, do func(key, value []byte, o Observation)) error {
	return b.ForEach(func(key, value []byte) error {
		if bytes.Equal(key, totalsKey) {
			return nil
		}
		if o, err := decode(value); err == nil {
			do(key, value, o)
		}
		return nil
	})
}

// read returns the observations of a box, the latest first.
func (f *file) read(id policy.BoxID) (s Summary, err error) {
	err = f.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(id))
		if b == nil {
			return nil
		}
		t := readTotals(b)
		s.Overflow, s.Lost, s.Since = t.Overflow, t.Lost, t.Since
		return each(b, func(_, _ []byte, o Observation) { s.Observations = append(s.Observations, o) })
	})
	slices.SortFunc(s.Observations, byLast)
	return s, err
}

// aged is an observation that may be removed.
type aged struct {
	key    []byte
	size   int64
	last   time.Time
	denied bool
}

// expire removes observations last seen before a time, and then, while all together are larger than size, the oldest ones
// of the largest boxes.
func (f *file) expire(before time.Time, size int64) error {
	held, total, err := f.sizes()
	if err != nil {
		return err
	}
	share := int64(-1) // no bound
	if total > size {
		share = fairShare(held, size-size/8)
	}
	for id := range held {
		err := f.db.Update(func(tx *bolt.Tx) error { return trim(tx, id, before, share) })
		if err != nil {
			return err
		}
	}
	return nil
}

// bound removes the oldest observations of the largest boxes if all together are a quarter larger than size.
func (f *file) bound(size int64) error {
	if _, total, err := f.sizes(); err != nil || total <= size+size/4 {
		return err
	}
	return f.expire(time.Time{}, size)
}

// sizes returns the bytes of each box, and of all.
func (f *file) sizes() (held map[policy.BoxID]int64, total int64, err error) {
	held = map[policy.BoxID]int64{}
	err = f.db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(id []byte, b *bolt.Bucket) error {
			n := readTotals(b).Bytes
			held[policy.BoxID(id)] = n
			total += n
			return nil
		})
	})
	return held, total, err
}

// fairShare returns the largest bound for each box with which all boxes together have at most size.
func fairShare(held map[policy.BoxID]int64, size int64) int64 {
	list := make([]int64, 0, len(held))
	for _, n := range held {
		list = append(list, n)
	}
	slices.Sort(list)
	for i, n := range list {
		if share := size / int64(len(list)-i); n > share {
			return share
		}
		size -= n
	}
	return size
}

// trim removes the observations of a box that are too old, and its oldest ones beyond share bytes (-1: all may stay). A
// box without any is removed.
func trim(tx *bolt.Tx, id policy.BoxID, before time.Time, share int64) error {
	b := tx.Bucket([]byte(id))
	if b == nil {
		return nil
	}
	t := readTotals(b)
	var list []aged
	err := each(b, func(key, value []byte, o Observation) {
		list = append(list, aged{slices.Clone(key), int64(len(value)), o.Last, o.Verdict != policy.Allow})
	})
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b aged) int { return cmp.Or(a.last.Compare(b.last), bytes.Compare(a.key, b.key)) })
	removed := 0
	for _, a := range list {
		if !a.last.Before(before) && (share < 0 || t.Bytes <= share) {
			break
		}
		if err := b.Delete(a.key); err != nil {
			return err
		}
		verdict := policy.Allow
		if a.denied {
			verdict = policy.Deny
		}
		n, _ := t.count(verdict)
		*n--
		t.Bytes -= a.size
		t.Since = a.last
		removed++
	}
	switch {
	case removed == 0:
		return nil
	case removed == len(list):
		return tx.DeleteBucket([]byte(id))
	}
	return t.put(b)
}
