package observe

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/policy"
)

// MaxPerBox is how many observations one box can have. Refused decisions have at most half of them.
const MaxPerBox = 4096

const (
	sumEvery    = 200 * time.Millisecond
	flushEvery  = 5 * time.Second
	expireEvery = 10 * time.Minute
	lockWait    = 2 * time.Second // for a predecessor to close the file
	// maxRecent is how many observations of all boxes are held in memory before they are written early.
	maxRecent = 16384
)

// Options configures a [Log].
type Options struct {
	Path string        // of the file
	Keep time.Duration // age at which observations are removed
	Size int64         // bytes of observations, encoded, that are kept
	Log  *zap.Logger
	// CheckSpace returns an error if that many more bytes would fill the disk. It may be nil.
	CheckSpace func(bytes int64) error
}

// Log sums up decisions. Create it with [New] and run [Log.Run]. Safe for concurrent use.
type Log struct {
	opts  Options
	queue *queue

	mu       sync.Mutex
	recent   map[policy.BoxID]*recent // since the last write
	n        int                      // observations in recent
	file     *file                    // nil until it is open, and after [Log.Close]
	closed   bool
	reported bool // the failure to open or write was logged
	wait     time.Duration
}

// recent holds the decisions about a box since the last write.
type recent struct {
	sums     map[Key]*Observation
	overflow uint64
	lost     uint64
}

// New returns a log, which opens its file when it first writes.
func New(o Options) *Log {
	return &Log{opts: o, queue: newQueue(), wait: lockWait, recent: map[policy.BoxID]*recent{}}
}

// Observe adds a decision. It does not block. Decisions without a box, and
// decisions that a self-test caused, are not kept.
func (l *Log) Observe(e audit.Event) {
	if e.Box != "" && !e.SelfTest {
		l.queue.add(&e)
	}
}

// Run sums up and writes decisions until ctx ends. It returns after the last write.
func (l *Log) Run(ctx context.Context) {
	sum, flush, expire := time.NewTicker(sumEvery), time.NewTicker(flushEvery), time.NewTicker(expireEvery)
	defer sum.Stop()
	defer flush.Stop()
	defer expire.Stop()
	for {
		select {
		case <-ctx.Done():
			l.Flush()
			return
		case <-sum.C:
			if l.sum() {
				l.Flush()
			}
		case <-flush.C:
			l.Flush()
		case <-expire.C:
			l.expire(time.Now())
		}
	}
}

// sum empties the queue, and reports whether memory should be written.
func (l *Log) sum() (full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sumLocked()
}

func (l *Log) sumLocked() (full bool) {
	list, lost := l.queue.take()
	defer l.queue.give(list)
	for id, n := range lost {
		l.recentLocked(id).lost += n
	}
	for i := range list {
		l.addLocked(&list[i])
	}
	return l.n >= maxRecent
}

func (l *Log) recentLocked(id policy.BoxID) *recent {
	r := l.recent[id]
	if r == nil {
		r = &recent{sums: map[Key]*Observation{}}
		l.recent[id] = r
	}
	return r
}

func (l *Log) addLocked(e *queued) {
	k := keyOf(&e.Event)
	r := l.recentLocked(e.Box)
	switch known := r.sums[k]; {
	case known != nil:
		known.addEvent(&e.Event, e.first)
	case len(r.sums) >= MaxPerBox || l.n >= 2*maxRecent:
		r.overflow += countOf(&e.Event)
	default:
		o := observationOf(&e.Event, k)
		o.First = e.first
		r.sums[k] = &o
		l.n++
	}
}

// Flush writes all decisions so far. If that fails, they stay in memory, within its bounds, for the next attempt.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushLocked()
}

func (l *Log) flushLocked() {
	l.sumLocked()
	if len(l.recent) == 0 || l.closed {
		return
	}
	f, err := l.openLocked()
	if err == nil && l.opts.CheckSpace != nil {
		err = l.opts.CheckSpace(int64(l.n) << 10)
	}
	if err == nil {
		err = f.write(l.recent)
	}
	if err != nil {
		l.failedLocked(err)
		return
	}
	l.recent, l.n, l.reported = map[policy.BoxID]*recent{}, 0, false
	if err := f.bound(l.opts.Size); err != nil {
		l.failedLocked(err)
	}
}

// openLocked returns the file. It is opened late, since a predecessor may hold it.
func (l *Log) openLocked() (*file, error) {
	if l.closed {
		return nil, errClosed
	}
	if l.file != nil {
		return l.file, nil
	}
	f, aside, err := openFile(l.opts.Path, l.wait)
	if err != nil {
		return nil, err
	}
	if aside != "" {
		l.opts.Log.Error("the file of observations is damaged; a new one was begun", zap.String("damaged", aside))
	}
	l.file = f
	return f, nil
}

var errClosed = errors.New("the observations are closed")

func (l *Log) failedLocked(err error) {
	if !l.reported {
		l.opts.Log.Error("observations cannot be written; they are kept in memory for now", zap.String("file", l.opts.Path), zap.Error(err))
	}
	l.reported = true
}

func (l *Log) expire(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := l.openLocked()
	if err == nil {
		err = f.expire(now.Add(-l.opts.Keep), l.opts.Size)
	}
	if err != nil {
		l.failedLocked(err)
	}
}

// Of returns the observations of a box, including the last seconds.
func (l *Log) Of(id policy.BoxID) (Summary, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushLocked()
	f, err := l.openLocked()
	if err != nil {
		return Summary{}, err
	}
	return f.read(id)
}

// Close writes all decisions so far and closes the file for good. Later decisions are dropped.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.flushLocked()
	l.closed = true
	if l.file == nil {
		return nil
	}
	return l.file.close()
}
