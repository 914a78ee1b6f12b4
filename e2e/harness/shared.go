package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"boxgate/api"
	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// Shared returns the world of a lab with the default configuration that other tests of the package also use. A test
// uses the lab exclusively: parallel tests are in different labs, and the next test finds no boxes, no records of the
// internet and an empty log. At the end of the test its boxes, snapshots and API keys are deleted, and the internet gets its
// predefined hosts back. If anything else has changed, such as the gateway's configuration, its settings or the kernel's
// rules, the lab is closed instead of reused. A restart of the gateway is allowed. State in the gateway's memory
// remains, such as metrics and cached DNS answers: a test that counts them needs [NewWorld], and a name that a test adds to the
// internet must be its own among the tests of its package.
func Shared(t *testing.T) *World { t.Helper(); return acquireShared(t, lab.Options{}) }

// SharedCaptured is [Shared] for labs made like [NewCaptured].
func SharedCaptured(t *testing.T) *World {
	t.Helper()
	return acquireShared(t, lab.Options{Net: testnet.Options{Capture: true}})
}

// SharedWith is [Shared] for labs with another configuration. Tests whose change leads to the same configuration share labs.
func SharedWith(t *testing.T, change func(*config.Config)) *World {
	t.Helper()
	return acquireShared(t, lab.Options{Change: change})
}

// SharedCapturedWith is [SharedCaptured] for labs with another configuration.
func SharedCapturedWith(t *testing.T, change func(*config.Config)) *World {
	t.Helper()
	return acquireShared(t, lab.Options{Change: change, Net: testnet.Options{Capture: true}})
}

// SharedStopped is [Shared] for labs whose gateway is not started, neither before nor in the test: for commands that need none.
func SharedStopped(t *testing.T, net testnet.Options) *World {
	t.Helper()
	return acquireFrom(t, lab.Options{Net: net}, true)
}

// pools are the idle labs by configuration.
var pools struct {
	mu     sync.Mutex
	byText map[string]*labs
}

// poolFor returns the labs with a configuration. Its text stands for it, without the paths and addresses that differ with each lab.
func poolFor(o lab.Options, stopped bool) (*labs, error) {
	cfg := config.Default()
	patiently(o.Change)(&cfg)
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprintf("capture: %v, stopped: %v\n%s", o.Net.Capture, stopped, text)
	pools.mu.Lock()
	defer pools.mu.Unlock()
	if pools.byText == nil {
		pools.byText = map[string]*labs{}
	}
	if pools.byText[key] == nil {
		pools.byText[key] = &labs{options: o, stopped: stopped}
	}
	return pools.byText[key], nil
}

// labs are the idle labs with one configuration.
type labs struct {
	options lab.Options
	stopped bool // without a gateway
	mu      sync.Mutex
	idle    []*sharedLab
}

// sharedLab is a lab and its state at the start of each test.
type sharedLab struct {
	*lab.Lab
	state   string
	stopped bool      // its gateway is not started
	keys    []string  // IDs of the API keys
	since   time.Time // when its last test ended
}

// counted counts the labs of this process.
var counted struct{ own, shared, used, closed atomic.Int64 }

// countLabs describes the number of labs.
func countLabs() string {
	holders.mu.Lock()
	defer holders.mu.Unlock()
	return fmt.Sprintf("labs: %d for one test, %d shared (used %d times, %d closed early); waited %v for slots",
		counted.own.Load(), counted.shared.Load(), counted.used.Load(), counted.closed.Load(), holders.waited.Round(time.Millisecond))
}

func acquireShared(t *testing.T, o lab.Options) *World { t.Helper(); return acquireFrom(t, o, false) }

func acquireFrom(t *testing.T, o lab.Options, stopped bool) *World {
	t.Helper()
	needRoot(t)
	TakeSlot(t)
	from, err := poolFor(o, stopped)
	if err != nil {
		t.Fatal(err)
	}
	s, err := from.acquire()
	if err != nil {
		t.Fatal(err)
	}
	counted.used.Add(1)
	own := *s.Lab // a copy, because the test may change its fields
	w := worldIn(t, &own)
	if info, err := s.Log.Stat(); err == nil {
		w.logFrom = info.Size()
	}
	t.Cleanup(func() {
		w.showLog()
		err := s.reset(t, &own)
		if err == nil {
			from.release(s)
			if err := closeIdle(time.Now()); err != nil {
				t.Errorf("closing labs that are no longer used: %v", err)
			}
			return
		}
		if !t.Failed() {
			t.Logf("the lab is not used again: %v", err)
		}
		counted.closed.Add(1)
		if err := own.Close(); err != nil {
			t.Errorf("closing the lab: %v", err)
		}
	})
	return w
}

// acquire returns an idle lab or a new one.
func (l *labs) acquire() (*sharedLab, error) {
	if s := l.acquireIdle(); s != nil {
		return s, nil
	}
	return l.start()
}

func (l *labs) acquireIdle() *sharedLab {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.idle)
	if n == 0 {
		return nil
	}
	s := l.idle[n-1]
	l.idle = l.idle[:n-1]
	return s
}

func (l *labs) release(s *sharedLab) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.since = time.Now()
	l.idle = append(l.idle, s)
}

// idleLimit is how long an unused lab is kept. Its gateway uses about 6 ms of processor time a second, and a new lab 300 ms.
const idleLimit = time.Minute

// closeIdle closes the labs that have been unused for too long.
func closeIdle(now time.Time) (err error) {
	for _, s := range takeIdle(now) {
		counted.closed.Add(1)
		err = errors.Join(err, s.Close())
	}
	return err
}

// takeIdle removes the labs that have been unused for too long from their pools.
func takeIdle(now time.Time) (unused []*sharedLab) {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	for _, l := range pools.byText {
		l.mu.Lock()
		l.idle = slices.DeleteFunc(l.idle, func(s *sharedLab) bool {
			if now.Sub(s.since) < idleLimit {
				return false
			}
			unused = append(unused, s)
			return true
		})
		l.mu.Unlock()
	}
	return unused
}

// start creates a lab and starts its gateway.
func (l *labs) start() (*sharedLab, error) {
	ctx := context.Background()
	made, err := lab.New(ctx, lab.Options{Gateway: Gateway(), ImageDir: ImageDir(), Change: patiently(l.options.Change), Net: l.options.Net})
	if err != nil {
		return nil, err
	}
	s := &sharedLab{Lab: made}
	if l.options.Net.Capture {
		err = limitNoICMP(made)
	}
	if s.stopped = l.stopped; err == nil && !s.stopped {
		if err = made.Start(ctx); err == nil {
			s.keys, err = s.keyIDs(ctx)
		}
	}
	if err == nil {
		s.state, err = s.readState(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, made.Close())
	}
	counted.shared.Add(1)
	return s, nil
}

// closeShared closes the labs of all configurations.
func closeShared() (err error) {
	for _, l := range pools.byText {
		for _, s := range l.idle {
			err = errors.Join(err, s.Close())
		}
		l.idle = nil
	}
	return err
}

// reset prepares the lab for the next test, or returns the reason why it cannot. own is the test's copy of the lab.
func (s *sharedLab) reset(t *testing.T, own *lab.Lab) error {
	if t.Failed() {
		return errors.New("a test has failed in it")
	}
	if err := noteNames(t, s.Net.Edits()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := s.resetGateway(ctx, own); err != nil {
		return err
	}
	state, err := s.readState(ctx)
	if err != nil {
		return err
	}
	if state != s.state {
		return fmt.Errorf("the gateway's host has been changed: %s", firstDifference(s.state, state))
	}
	if err := s.Net.Restore(); err != nil {
		return err
	}
	s.Net.Renew()
	return nil
}

// resetGateway deletes from the gateway what the test has made.
func (s *sharedLab) resetGateway(ctx context.Context, own *lab.Lab) error {
	if s.stopped {
		if own.Process != nil {
			return errors.New("the gateway has been started")
		}
		return nil
	}
	if err := s.adoptGateway(own); err != nil {
		return err
	}
	return s.deleteBoxes(ctx)
}

// added are the names that tests of this process added to shared labs → the test.
var added struct {
	mu    sync.Mutex
	names map[string]string
}

// noteNames checks the names that a test has changed, because the gateway may have cached their answers. It returns an error if a
// predefined name is among them. The test fails if another test has added the same name, in whichever lab: the two could be in the same
// lab in another run.
func noteNames(t *testing.T, edits map[string]bool) error {
	added.mu.Lock()
	defer added.mu.Unlock()
	if added.names == nil {
		added.names = map[string]string{}
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	for name, predefined := range edits {
		if predefined {
			return fmt.Errorf("%s has been changed", name)
		}
		if other, ok := added.names[name]; ok && other != test && name != OriginName {
			t.Errorf("%s has added the host %s to a shared lab, as this test has: each needs its own", other, name)
		}
		added.names[name] = test
	}
	return nil
}

// adoptGateway adopts the gateway of a test that restarted it, if it was started in the same way.
func (s *sharedLab) adoptGateway(own *lab.Lab) error {
	if own.Process == nil {
		return errors.New("the gateway has been stopped")
	}
	select {
	case <-own.Exited:
		return errors.New("the gateway has exited")
	default:
	}
	if err := notReplaced(own); err != nil {
		return err
	}
	if own.Process == s.Process {
		return nil
	}
	if !slices.Equal(own.Process.Args, s.Process.Args) || !slices.Equal(own.Process.Env, s.Process.Env) || own.Errout != s.Errout {
		return errors.New("the gateway has been started in another way")
	}
	adopted := *own
	adopted.Client, adopted.Env, adopted.Flags, adopted.Self, adopted.Errout = s.Client, s.Env, s.Flags, s.Self, s.Errout
	s.Lab = &adopted
	return nil
}

// notReplaced returns an error if another process than the one that was started serves as the gateway, after an upgrade.
func notReplaced(l *lab.Lab) error {
	pids, err := l.Net.Gateway().Processes()
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty if it has exited
		if pid != l.Process.Process.Pid && bytes.Contains(line, []byte("\x00serve\x00")) {
			return errors.New("the gateway has been replaced")
		}
	}
	return err
}

func (s *sharedLab) deleteBoxes(ctx context.Context) error {
	var boxes []struct{ ID string }
	if err := s.Client.Get(ctx, "/v2/box", &boxes); err != nil {
		return err
	}
	for _, box := range boxes {
		if err := s.Client.Do(ctx, "DELETE", api.BoxPath(box.ID), nil, nil); err != nil {
			return fmt.Errorf("deleting box %s: %w", box.ID, err)
		}
	}
	return errors.Join(s.deleteSnapshots(ctx), s.deleteKeys(ctx))
}

// deleteKeys deletes the API keys that were made since the gateway's first start.
func (s *sharedLab) deleteKeys(ctx context.Context) error {
	ids, err := s.keyIDs(ctx)
	for _, id := range ids {
		if err == nil && !slices.Contains(s.keys, id) {
			err = s.Client.Do(ctx, "DELETE", "/v2/api-keys/"+id, nil, nil)
		}
	}
	return err
}

// keyIDs returns the IDs of the API keys.
func (s *sharedLab) keyIDs(ctx context.Context) (ids []string, err error) {
	var list struct {
		Keys []struct{ ID string } `json:"api_keys"`
	}
	err = s.Client.Get(ctx, "/v2/api-keys", &list)
	for _, key := range list.Keys {
		if !slices.Contains(ids, key.ID) { // a key and the one that it replaced have the same
			ids = append(ids, key.ID)
		}
	}
	return ids, err
}

func (s *sharedLab) deleteSnapshots(ctx context.Context) error {
	var kept struct {
		Snapshots []struct {
			ID  string
			Box string `json:"box_id"`
		}
	}
	if err := s.Client.Get(ctx, "/v2/box/snapshots", &kept); err != nil {
		return err
	}
	for _, snapshot := range kept.Snapshots {
		if err := s.Client.Do(ctx, "DELETE", api.BoxPath(snapshot.Box, "snapshots", snapshot.ID), nil, nil); err != nil {
			return fmt.Errorf("deleting snapshot %s: %w", snapshot.ID, err)
		}
	}
	return nil
}

// statePaths are the API paths of the gateway's state other than boxes.
var statePaths = []string{"/v2/box", "/v2/box/snapshots", "/v2/box/settings/network-policies", "/v2/box/settings/attach-headers", "/v2/box/settings/env"}

// hostState prints the network state of the gateway's host that a test could change, without parts that the kernel adds
// or that differ with each start of the gateway.
const hostState = `nft --stateless --terse list ruleset | sed -E 's/, start [a-z0-9]+"/"/; s/\b[3-6][0-9]{4}\b/PORT/g'
{ ip -brief -4 addr; ip -brief -6 addr show scope global; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; } | grep -v 'fe80\|expires\|anycast\|multicast' | sort`

// readState returns the state that must be equal for each test: the gateway's settings, its configuration, and the
// network of its host.
func (s *sharedLab) readState(ctx context.Context) (string, error) {
	state, err := s.filesOrSettings(ctx)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(s.Config)
	if err != nil {
		return "", err
	}
	out, err := s.Net.Gateway().Run(ctx, "sh", "-c", hostState)
	return state + string(text) + out, err
}

// filesOrSettings returns the gateway's settings, or the names of all files of a lab whose gateway is not started.
func (s *sharedLab) filesOrSettings(ctx context.Context) (state string, err error) {
	if s.stopped {
		return state, filepath.WalkDir(s.Dir, func(path string, _ fs.DirEntry, err error) error {
			state += path + "\n"
			return err
		})
	}
	for _, path := range statePaths {
		var text []byte
		if err := s.Client.Get(ctx, path, &text); err != nil {
			return "", err
		}
		state += path + " " + string(text) + "\n"
	}
	return state, nil
}

// firstDifference returns the first line that differs between two texts, from both.
func firstDifference(before, after string) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range max(len(a), len(b)) {
		was, is := "", ""
		if i < len(a) {
			was = a[i]
		}
		if i < len(b) {
			is = b[i]
		}
		if was != is {
			return fmt.Sprintf("%.200q, not %.200q", is, was)
		}
	}
	return ""
}
