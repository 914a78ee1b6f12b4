package envd

import (
	"context"
	"crypto/rand"
	"errors"
	"path"
	"strings"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/files"
	"boxgate/api/problem"
	"boxgate/policy"
	"boxgate/quota"
)

type watchRequest struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
	Entries   bool   `json:"includeEntry"`
	// Network asks for the events of network mounts, which may lack the changes of other machines. No mount of a box is one.
	Network bool `json:"allowNetworkMounts"`
}

// watchResponse is an element of a stream of changes. One field is set.
type watchResponse struct {
	Start      *empty     `json:"start,omitempty"`
	Filesystem *fileEvent `json:"filesystem,omitempty"`
	KeepAlive  *empty     `json:"keepalive,omitempty"`
}

type fileEvent struct {
	Name  string     `json:"name"`
	Type  string     `json:"type"`
	Entry *entryInfo `json:"entry,omitempty"`
}

type watcherName struct {
	ID string `json:"watcherId"`
}

type watcherEvents struct {
	Events []*fileEvent `json:"events"`
}

func (e *Endpoints) addWatchers() {
	serverStream(e, filesystemService+"WatchDir", "watchFiles", e.watchDir)
	unary(e, filesystemService+"CreateWatcher", "watchFiles", e.createWatcher)
	unary(e, filesystemService+"GetWatcherEvents", "watchFiles", e.watcherEvents)
	unary(e, filesystemService+"RemoveWatcher", "watchFiles", e.removeWatcher)
}

// errLost ends a watch whose events were lost: the protocol has no event for that.
var errLost = api.Errorf(api.ErrConflict, "changes were lost, because there were too many of them or of directories; list the directory, and watch it again")

// eventTypes are the names of types of events.
var eventTypes = map[files.EventKind]string{
	files.EventCreate: "EVENT_TYPE_CREATE", files.EventWrite: "EVENT_TYPE_WRITE", files.EventRemove: "EVENT_TYPE_REMOVE",
	files.EventRename: "EVENT_TYPE_RENAME", files.EventChmod: "EVENT_TYPE_CHMOD",
}

// eventOf translates a change below a directory.
func eventOf(dir string, change files.Event) (*fileEvent, error) {
	kind, ok := eventTypes[change.Kind]
	if !ok {
		return nil, errLost
	}
	event := &fileEvent{Name: shown(string(change.Name)), Type: kind}
	gone := change.Kind == files.EventRemove || change.Kind == files.EventRename // another file may have taken the name
	if change.Entry != nil && !gone {
		event.Entry = entryOf(path.Join(dir, string(change.Name)), *change.Entry)
	}
	return event, nil
}

// watch reports the changes of a directory until ctx ends or emit fails. The first call of emit has no events.
func (e *Endpoints) watch(ctx context.Context, c *call, m *watchRequest, emit func([]*fileEvent) error) error {
	dir, err := resolve(c.box, c.user, m.Path)
	if err != nil {
		return err
	}
	err = e.with(ctx, c, func(f files.Files) error {
		info, err := f.Stat(dir, true)
		if err == nil && !info.IsDir {
			err = problem.Invalid("/path", "is not a directory: %s", shown(dir))
		}
		return err
	})
	if err != nil {
		return err
	}
	return e.cfg.Watcher.WatchFiles(ctx, c.box.ID, dir, files.WatchOptions{User: c.user, Recursive: m.Recursive, Entries: m.Entries}, func(changes []files.Event) error {
		events := make([]*fileEvent, 0, len(changes))
		for _, change := range changes {
			if change.Kind == files.EventOverflow && len(change.Name) > 0 {
				continue // a directory below that cannot be watched; the changes of others are complete
			}
			event, err := eventOf(dir, change)
			if err != nil {
				return err
			}
			events = append(events, event)
		}
		return emit(events)
	})
}

// watchDir streams the changes of a directory.
func (e *Endpoints) watchDir(ctx context.Context, c *call, m *watchRequest, send func(*watchResponse) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var mu sync.Mutex // sends and begun
	begun := false
	alive := time.NewTicker(c.keepAlive())
	defer alive.Stop()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-alive.C:
			}
			mu.Lock()
			err := ctx.Err()
			if begun && err == nil {
				err = send(&watchResponse{KeepAlive: &empty{}})
			}
			mu.Unlock()
			if err != nil {
				end(err)
			}
		}
	}()
	err := e.watch(ctx, c, m, func(events []*fileEvent) error {
		mu.Lock()
		defer mu.Unlock()
		if !begun {
			begun = true
			if err := send(&watchResponse{Start: &empty{}}); err != nil {
				return err
			}
		}
		for _, event := range events {
			if err := send(&watchResponse{Filesystem: event}); err != nil {
				return err
			}
		}
		return nil
	})
	mu.Lock() // no sign of life may be sent once this has returned
	defer mu.Unlock()
	end(err)
	return err
}

// Bounds of the watchers that clients poll.
const (
	maxWatchers      = 16 // of one box
	maxWatcherEvents = 4096
	maxWatcherBytes  = 1 << 20
	watcherTime      = 10 * time.Minute // without a poll, after which a watcher ends
	watcherCost      = 2 * maxWatcherBytes
)

// watchers are the watchers that clients poll. The zero value has none.
type watchers struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]map[string]*watcher
}

// watcher collects changes until a client asks for them.
type watcher struct {
	end   context.CancelCauseFunc
	timer *time.Timer

	mu     sync.Mutex
	events []*fileEvent
	size   int
	err    error // why it has ended
}

var errRemoved = errors.New("the watcher was removed")

// createWatcher begins to collect changes, until the watcher is removed, was not polled for a while, or its API key has ended.
func (e *Endpoints) createWatcher(ctx context.Context, c *call, m *watchRequest) (*watcherName, error) {
	id, w := "w"+strings.ToLower(rand.Text()), &watcher{}
	if err := quota.ScopeOf(ctx).Acquire(quota.Memory, watcherCost); err != nil {
		return nil, err
	}
	release := quota.ScopeOf(ctx).Extend()
	run, end := access.Outlive(ctx)
	w.end = end
	if err := e.watchers.add(c.box.ID, id, w); err != nil {
		end(err)
		release()
		return nil, err
	}
	w.timer = time.AfterFunc(watcherTime, func() { end(errRemoved) })
	begun, ended := make(chan struct{}), make(chan error, 1)
	first := sync.OnceFunc(func() { close(begun) })
	go func() {
		defer release()
		defer e.watchers.remove(c.box.ID, id)
		err := e.watch(run, c, m, func(events []*fileEvent) error {
			first()
			return w.add(events)
		})
		ended <- err
		w.fail(err)
		<-run.Done() // clients learn the error from their next poll
	}()
	select {
	case <-begun:
		return &watcherName{id}, nil
	case err := <-ended:
		end(err)
		return nil, err
	case <-ctx.Done():
		end(context.Cause(ctx))
		return nil, context.Cause(ctx)
	}
}

func (ws *watchers) add(box policy.BoxID, id string, w *watcher) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.boxes[box]) >= maxWatchers {
		return api.Errorf(api.ErrLimit, "the sandbox has %d watchers, which is the limit; remove some", maxWatchers)
	}
	if ws.boxes == nil {
		ws.boxes = map[policy.BoxID]map[string]*watcher{}
	}
	if ws.boxes[box] == nil {
		ws.boxes[box] = map[string]*watcher{}
	}
	ws.boxes[box][id] = w
	return nil
}

func (ws *watchers) find(box policy.BoxID, id string) (*watcher, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.boxes[box][id]; w != nil {
		return w, nil
	}
	return nil, api.Errorf(api.ErrNotFound, "there is no watcher %q", problem.Clip(id))
}

func (ws *watchers) remove(box policy.BoxID, id string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if delete(ws.boxes[box], id); len(ws.boxes[box]) == 0 {
		delete(ws.boxes, box)
	}
}

// add keeps changes. It fails when there are too many.
func (w *watcher) add(events []*fileEvent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, event := range events {
		w.size += entryCost + len(event.Name)
		if event.Entry != nil {
			w.size += entryCost + 2*len(event.Entry.Path) + len(event.Entry.Target)
		}
		if w.events = append(w.events, event); len(w.events) > maxWatcherEvents || w.size > maxWatcherBytes {
			w.events = nil
			return errLost
		}
	}
	return nil
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (e *Endpoints) watcherEvents(_ context.Context, c *call, m *watcherName) (*watcherEvents, error) {
	w, err := e.watchers.find(c.box.ID, m.ID)
	if err != nil {
		return nil, err
	}
	w.timer.Reset(watcherTime)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil && len(w.events) == 0 {
		return nil, w.err
	}
	events := w.events
	w.events, w.size = nil, 0
	if events == nil {
		events = []*fileEvent{}
	}
	return &watcherEvents{events}, nil
}

func (e *Endpoints) removeWatcher(_ context.Context, c *call, m *watcherName) (*empty, error) {
	w, err := e.watchers.find(c.box.ID, m.ID)
	if err != nil {
		return nil, err
	}
	w.end(errRemoved)
	return &empty{}, nil
}
