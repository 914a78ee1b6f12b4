package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/policy"
	"boxgate/store"
)

// memory is a store and a runner that records its calls.
type memory struct {
	mu     sync.Mutex
	stored map[string]store.Schedule
	broken error // returned by every change, if set
	began  []string
	notes  []string // skipped or abandoned runs
	sent   []Payload
	takes  time.Duration // duration of each run
	panics bool
}

func (m *memory) List(policy.BoxID) ([]store.Schedule, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []store.Schedule
	for _, s := range m.stored {
		list = append(list, s)
	}
	return list, nil
}

func (m *memory) Add(s store.Schedule, _ int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stored[s.ID] = s
	return m.broken
}

func (m *memory) Change(_ policy.BoxID, id string, change func(*store.Schedule) error) (store.Schedule, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.stored[id]
	if !ok {
		return s, store.ErrNotFound
	}
	if m.broken != nil {
		return s, m.broken
	}
	err := change(&s)
	if err == nil {
		m.stored[id] = s
	}
	return s, err
}

func (m *memory) Delete(_ policy.BoxID, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.stored, id)
	return nil
}

func (m *memory) Skip(s store.Schedule) { m.note("skipped " + s.ID) }

func (m *memory) Run(ctx context.Context, s store.Schedule, claim func(string) error) Outcome {
	if err := claim("run_" + s.ID); err != nil {
		m.note("abandoned " + s.ID)
		return Outcome{Status: Failed}
	}
	m.mu.Lock()
	m.began = append(m.began, time.Now().UTC().Format("15:04:05"))
	claimed, takes, panics := m.stored[s.ID].Claimed, m.takes, m.panics
	m.mu.Unlock()
	if claimed != "run_"+s.ID {
		m.note("not claimed")
	}
	if panics {
		panic("in a run")
	}
	select {
	case <-time.After(takes):
		return Outcome{Status: Completed, Output: "out"}
	case <-ctx.Done():
		return Outcome{Status: Failed, Error: "cut"}
	}
}

func (m *memory) note(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notes = append(m.notes, text)
}

// runs returns the start times of runs so far, and resets them.
func (m *memory) runs() string {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	out := strings.Join(m.began, " ")
	m.began = nil
	return out
}

func (m *memory) get(id string) store.Schedule {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stored[id]
}

func (m *memory) noted() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.notes)
}

func (m *memory) delivered() []Payload {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.sent)
}

// startScheduler runs a scheduler over m in the test's synctest bubble. The time is midnight.
func startScheduler(t *testing.T, m *memory, now func() time.Time) *Scheduler {
	t.Helper()
	if m.stored == nil {
		m.stored = map[string]store.Schedule{}
	}
	d := &Scheduler{Log: zap.NewNop(), Store: m, Runner: m, Now: now, Deliver: func(_ context.Context, _ store.Schedule, p Payload) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sent = append(m.sent, p)
	}}
	if err := d.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { d.Run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	return d
}

func add(t *testing.T, d *Scheduler, s store.Schedule) store.Schedule {
	t.Helper()
	s, err := d.Add(s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRunsWhenDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &memory{takes: time.Second}
		d := startScheduler(t, m, time.Now)
		time.Sleep(30 * time.Second)
		add(t, d, store.Schedule{ID: "a", Box: "b1", Cron: "*/2 * * * *", WebhookURL: "https://x"})
		time.Sleep(6 * time.Minute)
		if got := m.runs(); got != "00:02:00 00:04:00 00:06:00" {
			t.Errorf("runs at %s", got)
		}
		s := m.get("a")
		if s.Runs != 3 || s.Failures != 0 || s.LastRunStatus != Completed || s.LastRunID != "run_a" || s.Claimed != "" || s.LastRunAt.Format("15:04") != "00:06" {
			t.Errorf("%+v", s)
		}
		sent := m.delivered()
		if len(sent) != 3 || sent[0].Status != Completed || sent[0].Output != "out" || sent[0].Metadata.ScheduleID != "a" || sent[0].BoxID != "b1" {
			t.Errorf("sent: %+v", sent)
		}
		pause := func(paused bool) {
			if _, err := d.Change("b1", "a", func(s *store.Schedule) error { s.Paused = paused; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		pause(true)
		time.Sleep(time.Hour)
		if got := m.runs(); got != "" {
			t.Errorf("runs of a paused schedule at %s", got)
		}
		pause(false)
		time.Sleep(2 * time.Minute)
		if got := m.runs(); got != "01:08:00" {
			t.Errorf("after the pause, runs at %s; what was due during it is not run", got)
		}
		if err := d.Delete("b1", "a"); err != nil {
			t.Fatal(err)
		}
		add(t, d, store.Schedule{ID: "c", Box: "b2", Cron: "* * * * *"})
		d.Forget("b2")
		time.Sleep(time.Hour)
		if got := m.runs(); got != "" {
			t.Errorf("runs of schedules that are gone at %s", got)
		}
	})
}

func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &memory{takes: 150 * time.Second}
		d := startScheduler(t, m, time.Now)
		add(t, d, store.Schedule{ID: "a", Box: "b1", Cron: "* * * * *"})
		time.Sleep(5*time.Minute + 30*time.Second)
		if got := m.runs(); got != "00:01:00 00:04:00" {
			t.Errorf("runs at %s", got)
		}
		if got := fmt.Sprint(m.noted()); got != "[skipped a skipped a skipped a]" {
			t.Errorf("notes: %s", got)
		}
		if s := m.get("a"); s.Runs != 1 || s.LastRunStatus != Skipped || s.Claimed == "" {
			t.Errorf("%+v", s)
		}
	})
}

// However many due times passed while the gateway was down, one run follows. A run during which the gateway died has
// failed, and is not repeated.
func TestMissedWhileDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		m := &memory{stored: map[string]store.Schedule{
			"missed":  {ID: "missed", Box: "b1", Cron: "* * * * *", Settled: now.Add(-3 * time.Hour)},
			"claimed": {ID: "claimed", Box: "b1", Cron: "* * * * *", Settled: now, Claimed: "run_before"},
			"paused":  {ID: "paused", Box: "b1", Cron: "* * * * *", Settled: now.Add(-3 * time.Hour), Paused: true},
		}}
		startScheduler(t, m, time.Now)
		time.Sleep(30 * time.Second)
		if got := m.runs(); got != "00:00:00" {
			t.Errorf("runs at %s", got)
		}
		if s := m.get("missed"); s.Runs != 1 {
			t.Errorf("%+v", s)
		}
		if s := m.get("claimed"); s.Runs != 1 || s.Failures != 1 || s.LastRunID != "run_before" || s.LastRunStatus != Failed || s.LastError == "" || s.Claimed != "" {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Minute)
		if got := m.runs(); got != "00:01:00 00:01:00" {
			t.Errorf("runs at %s", got)
		}
	})
}

// Without a stored claim no command runs.
func TestNothingRunsUnclaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		d := startScheduler(t, m, time.Now)
		s := add(t, d, store.Schedule{ID: "a", Box: "b1", Cron: "* * * * *"})
		m.mu.Lock()
		m.broken = errors.New("disk full")
		m.mu.Unlock()
		time.Sleep(2*time.Minute + time.Second)
		if got := m.runs(); got != "" || !slices.Equal(m.noted(), []string{"abandoned a", "abandoned a"}) {
			t.Errorf("runs at %q, notes %v", got, m.noted())
		}
		if m.get("a").Settled != s.Settled {
			t.Error("a due time was settled without a run")
		}
		m.mu.Lock()
		m.broken = nil
		m.mu.Unlock()
		time.Sleep(time.Minute)
		if got := m.runs(); got != "00:03:00" {
			t.Errorf("runs at %q", got)
		}
	})
}

// A clock that is set ahead causes one run, one that is set back causes none, and both leave the schedule active.
func TestTheClockJumps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var off time.Duration
		jump := func(by time.Duration) { mu.Lock(); off += by; mu.Unlock() }
		m := &memory{}
		d := startScheduler(t, m, func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(off) })
		add(t, d, store.Schedule{ID: "a", Box: "b1", Cron: "* * * * *"})
		time.Sleep(90 * time.Second)
		m.runs()
		jump(3 * time.Hour)
		time.Sleep(20 * time.Second)
		if got := m.runs(); strings.Count(got, ":")/2 != 1 {
			t.Errorf("after the clock was set ahead, runs at %q", got)
		}
		jump(-200 * 24 * time.Hour)
		time.Sleep(20 * time.Second)
		if got := m.runs(); got != "" {
			t.Errorf("after the clock was set back, runs at %q", got)
		}
		time.Sleep(2 * time.Minute)
		if got := m.runs(); strings.Count(got, ":")/2 != 2 {
			t.Errorf("two minutes later, runs at %q", got)
		}
	})
}

// A panic in a run ends neither other runs nor the schedule.
func TestAPanicIsContained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &memory{panics: true}
		d := startScheduler(t, m, time.Now)
		add(t, d, store.Schedule{ID: "a", Box: "b1", Cron: "* * * * *"})
		time.Sleep(2*time.Minute + time.Second)
		if got := m.runs(); got != "00:01:00 00:02:00" {
			t.Errorf("runs at %q", got)
		}
	})
}

// A change cancels a run that was found due before it.
func TestAChangeWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		d := startScheduler(t, m, time.Now)
		s := add(t, d, store.Schedule{ID: "a", Box: "b1", Cron: "* * * * *"})
		time.Sleep(time.Second)
		if _, err := d.Change("b1", "a", func(s *store.Schedule) error { s.Paused = true; return nil }); err != nil {
			t.Fatal(err)
		}
		d.run(t.Context(), s, time.Now())
		if got := m.runs(); got != "" || len(m.noted()) != 1 {
			t.Errorf("runs at %q, notes %v", got, m.noted())
		}
		if d.skip(s, time.Now()); m.get("a").LastRunStatus == Skipped || len(m.noted()) != 1 {
			t.Errorf("a paused schedule has a skipped run: %+v, notes %v", m.get("a"), m.noted())
		}
	})
}
