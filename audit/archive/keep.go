package archive

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"boxgate/audit/segments"
	"boxgate/policy"
)

// Before the oldest file of main is removed, lines about boxes that are within their share are copied to kept.
// Otherwise one box could displace the decisions about all others by causing many. The copy of a file is called a part,
// and begins with a line that contains the file's number.

// A quarter of the size is divided among the boxes. When kept exceeds that by a quarter, its oldest lines about boxes
// beyond their share are removed. An eighth of the size is reserved for the file being copied or rewritten.
func (s *Store) shared() int64 { return s.size / 4 }

func (s *Store) reserve() int64 { return s.size / 8 }

// amount is the number of bytes about a box.
type amount struct{ main, kept int64 }

// owner returns the box that a line is about; "" if about no box. No other text of a decision can be mistaken for the
// ID, because quotes in it are escaped.
func owner(line []byte) policy.BoxID {
	_, rest, ok := bytes.Cut(line, []byte(`"box":"`))
	if !ok {
		return ""
	}
	id, _, _ := bytes.Cut(rest, []byte(`"`))
	return policy.BoxID(id)
}

// losses are the times of the last removed line about each box, copied from the lines.
type losses map[policy.BoxID][]byte

func (l losses) add(box policy.BoxID, line []byte) {
	_, rest, _ := bytes.Cut(line, []byte(`"time":"`))
	text, _, _ := bytes.Cut(rest, []byte(`"`))
	l[box] = append(l[box][:0], text...)
}

// times parses the times. A line without one counts as now.
func (l losses) times() map[policy.BoxID]time.Time {
	times := make(map[policy.BoxID]time.Time, len(l))
	for box, text := range l {
		t, err := time.Parse(time.RFC3339Nano, string(text))
		if err != nil {
			t = time.Now()
		}
		times[box] = t
	}
	return times
}

const partHead = `{"part":`

func partLine(number uint64) string { return fmt.Sprintf("%s%d}\n", partHead, number) }

// partOf parses the first line of a part and returns its number; ok is false for other lines.
func partOf(line []byte) (number uint64, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(partHead))
	if !ok {
		return 0, false
	}
	number, err := strconv.ParseUint(string(bytes.TrimSuffix(rest, []byte("}"))), 10, 64)
	return number, err == nil
}

// readParts calls each with the lines of the wanted parts of a segment of kept.
func readParts(segment segments.Segment, wanted func(part uint64) bool, each func(line []byte) error) error {
	in := false
	_, err := segment.Read(0, func(line []byte) error {
		if number, begins := partOf(line); begins {
			in = wanted(number)
			return nil
		}
		if !in {
			return nil
		}
		return each(line)
	})
	return err
}

// amountOf returns the amount of a box. amounts must not be nil.
func (s *Store) amountOf(box policy.BoxID) *amount {
	a := s.amounts[box]
	if a == nil {
		a = &amount{}
		s.amounts[box] = a
	}
	return a
}

// count adds lines that were written to main, unless amounts has yet to be computed by countAll.
func (s *Store) count(b []byte) {
	if s.amounts == nil {
		return
	}
	for line := range bytes.Lines(b) {
		s.amountOf(owner(line)).main += int64(len(line))
	}
}

// countAll adds up the lines about each box. It runs when the size is first exceeded, and again after amounts was reset.
func (s *Store) countAll() error {
	if s.amounts != nil {
		return nil
	}
	s.amounts = map[policy.BoxID]*amount{}
	for _, of := range []struct {
		files *segments.Files
		add   func(*amount, int64)
	}{{s.kept, func(a *amount, n int64) { a.kept += n }}, {s.main, func(a *amount, n int64) { a.main += n }}} {
		for _, segment := range of.files.Segments() {
			_, err := segment.Read(0, func(line []byte) error {
				if _, begins := partOf(line); !begins {
					of.add(s.amountOf(owner(line)), int64(len(line))+1)
				}
				return nil
			})
			if err != nil && !errors.Is(err, segments.ErrLine) {
				s.amounts = nil
				return err
			}
		}
	}
	return nil
}

// share is how many bytes may be kept about one box.
func (s *Store) share() int64 {
	sizes := make([]int64, 0, len(s.amounts))
	for box, a := range s.amounts {
		if a.main <= 0 && a.kept <= 0 {
			delete(s.amounts, box)
			continue
		}
		sizes = append(sizes, a.main+a.kept)
	}
	return segments.Share(sizes, s.shared())
}

// makeRoom moves the oldest files to kept until n more bytes fit, and removes files that are too old.
func (s *Store) makeRoom(n int) error {
	if int64(n) > s.size {
		return errBatch
	}
	if err := s.main.Rotate(max(s.size/16, 64<<10), s.filesAge()); err != nil {
		return err
	}
	if err := s.removeOld(); err != nil {
		return err
	}
	for {
		held := s.kept.Size() + s.main.Size()
		if held == 0 || held+int64(n)+s.reserve() <= s.size {
			return nil
		}
		if s.kept.Size() > s.shared()+s.shared()/4 || len(s.main.Segments()) == 0 {
			if err := s.shrinkKept(); err != nil {
				return err
			}
			continue
		}
		if len(s.main.Segments()) == 1 { // the file being written, which must be closed first
			if err := s.main.Rotate(0, 0); err != nil {
				return err
			}
		}
		before := s.main.Size()
		if err := s.moveOldest(s.main.Segments()[0]); err != nil {
			return err
		}
		if s.main.Size() == before {
			return nil // the file ends within a line and cannot be closed
		}
	}
}

// filesAge is how long a file is written, so that it does not outlive the age of its lines by much.
func (s *Store) filesAge() time.Duration { return min(24*time.Hour, max(s.age/8, time.Minute)) }

// removeOld removes files whose last line is too old.
func (s *Store) removeOld() error {
	for list := s.files(); len(list) > 1 && time.Since(list[1].Begun) > s.age; list = list[1:] {
		s.amounts = nil
		s.completeness.markIncomplete(list[1].Begun)
		if err := errors.Join(s.completeness.save(), s.removeFirst()); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) removeFirst() error {
	if len(s.kept.Segments()) == 0 {
		return s.main.RemoveOldest()
	}
	if len(s.kept.Segments()) == 1 {
		if err := s.kept.Rotate(0, 0); err != nil {
			return err
		}
	}
	return s.kept.RemoveOldest()
}

// moveOldest copies lines of the oldest segment of main to kept, and removes the segment. A line is copied if it and the
// later lines about its box in main are within the box's share. On a full disk the segment is removed without a copy,
// to free space.
func (s *Store) moveOldest(oldest segments.Segment) error {
	if err := s.countAll(); err != nil {
		return err
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	if err := s.kept.Rotate(max(s.size/32, 1), s.keptAge(oldest)); err != nil {
		return err
	}
	most, lost := s.share(), losses{}
	p := part{files: s.kept, segment: oldest, buf: []byte(partLine(oldest.Number))}
	_, err := oldest.Read(0, func(line []byte) error {
		n, box := int64(len(line))+1, owner(line)
		a := s.amountOf(box)
		if a.main -= n; a.main+n <= most && p.add(line) {
			a.kept += n
			return nil
		}
		lost.add(box, line)
		return nil
	})
	if err != nil && !errors.Is(err, segments.ErrLine) {
		s.amounts = nil
		return err
	}
	if p.finish(); p.diskFull || err != nil {
		s.amounts = nil
		s.completeness.markIncomplete(time.Now())
	}
	s.completeness.addLosses(lost.times())
	s.completeness.recordMoved(oldest.Number)
	_ = s.completeness.save() // on a full disk it is saved later
	return s.main.RemoveOldest()
}

// keptAge is the age for [segments.Files.Rotate] at which a file of kept ends before the next part.
func (s *Store) keptAge(next segments.Segment) time.Duration {
	list := s.kept.Segments()
	if len(list) > 0 && next.Begun.Sub(list[len(list)-1].Begun) > s.filesAge() {
		return 0
	}
	return time.Duration(1<<63 - 1)
}

// part writes the copy of a segment.
type part struct {
	files    *segments.Files
	segment  segments.Segment
	buf      []byte
	hasLines bool // a line was added
	diskFull bool // the disk is full
}

// add adds a line, and reports whether the disk had space.
func (p *part) add(line []byte) bool {
	if p.diskFull {
		return false
	}
	p.buf = append(append(p.buf, line...), '\n')
	p.hasLines = true
	if len(p.buf) > 64<<10 {
		p.flush()
	}
	return !p.diskFull
}

func (p *part) flush() {
	n, err := p.files.WriteCopy(p.segment, p.buf)
	if err != nil {
		_ = p.files.Undo(n)
		p.diskFull = true
	}
	p.buf = p.buf[:0]
}

// finish makes the copy durable. It must be called before the segment is removed.
func (p *part) finish() {
	if !p.hasLines {
		return
	}
	if len(p.buf) > 0 && !p.diskFull {
		p.flush()
	}
	if p.files.Sync() != nil {
		p.diskFull = true
	}
}

// shrinkKept removes the oldest lines about boxes beyond their share, until kept is within the shared quarter. If
// rewriting fails, it removes the oldest file instead.
func (s *Store) shrinkKept() error {
	if err := s.countAll(); err != nil {
		return err
	}
	most := s.share()
	for _, segment := range s.kept.Segments() {
		if s.kept.Size() <= s.shared() {
			return nil
		}
		if err := s.dropExcess(segment, most); err != nil {
			s.amounts = nil
			break
		}
	}
	if s.kept.Size() <= s.shared() {
		return nil
	}
	s.amounts = nil
	if list := s.files(); len(list) > 1 {
		s.completeness.markIncomplete(list[1].Begun)
	} else {
		s.completeness.markIncomplete(time.Now())
	}
	_ = s.completeness.save()
	return s.removeFirst()
}

// dropExcess removes lines about boxes beyond their share from a segment of kept.
func (s *Store) dropExcess(segment segments.Segment, most int64) error {
	lost := losses{}
	var head []byte // first line of the part, held back until one of its lines stays
	edit := func(to, line []byte) []byte {
		if _, begins := partOf(line); begins {
			head = append(append(head[:0], line...), '\n')
			return to
		}
		n, box := int64(len(line))+1, owner(line)
		a := s.amountOf(box)
		if a.main+a.kept > most {
			a.kept -= n
			lost.add(box, line)
			return to
		}
		to = append(to, head...)
		head = head[:0]
		return append(append(to, line...), '\n')
	}
	return s.kept.Rewrite(segment, edit, func() error {
		s.completeness.addLosses(lost.times())
		return s.completeness.save()
	})
}

// recoverMove loads the records of missing decisions, and finishes or undoes the copying of a segment that a crash has
// interrupted.
func (s *Store) recoverMove(path string) error {
	err := s.completeness.load(path)
	list := s.main.Segments()
	for ; len(list) > 0 && list[0].Number <= s.completeness.moved; list = list[1:] {
		if len(list) == 1 {
			err = errors.Join(err, s.main.Rotate(0, 0))
		}
		err = errors.Join(err, s.main.RemoveOldest())
	}
	if kept := s.kept.Segments(); len(list) > 0 && len(kept) > 0 {
		err = errors.Join(err, s.cutPart(kept[len(kept)-1], list[0].Number))
	}
	if !s.completeness.since.IsZero() {
		return err
	}
	if all := s.files(); len(all) > 0 { // an earlier version only removed the oldest files
		s.completeness.markIncomplete(all[0].Begun)
	} else {
		s.completeness.markIncomplete(time.Now())
	}
	return err
}

// cutPart removes from the end of kept the copy of a segment that is still in main.
func (s *Store) cutPart(last segments.Segment, number uint64) error {
	var offset int64
	_, err := last.Read(0, func(line []byte) error {
		if part, begins := partOf(line); begins && part >= number {
			return errStopReading
		}
		offset += int64(len(line)) + 1
		return nil
	})
	if errors.Is(err, errStopReading) {
		return s.kept.Cut(offset)
	}
	return err
}

// errStopReading ends reading early.
var errStopReading = errors.New("enough has been read")
