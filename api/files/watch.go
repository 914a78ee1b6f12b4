package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/policy"
)

// Watcher reports changes of files.
type Watcher interface {
	// WatchFiles reports the changes of a directory of a box until ctx ends, after starting the box if necessary. The first call of emit
	// has no events: from then on every change is reported. Calls of emit do not overlap; while one lasts, the kernel queues the
	// events of the box, and drops them once its queue is full, which is an event of its own ([EventOverflow]). The watch ends when emit
	// returns an error. It does not keep the box awake, and survives a pause.
	//
	// The error is never nil: that of emit, the cause of ctx, or why the watch could not start or go on. [api.ErrNotFound]: the directory
	// does not exist, or no longer; [api.ErrLimit]: the box has too many watches, or the directory too many directories.
	WatchFiles(ctx context.Context, id policy.BoxID, path string, o WatchOptions, emit func([]Event) error) error
}

// WatchOptions are the options of [Watcher.WatchFiles].
type WatchOptions struct {
	User      string // as in [Host.OpenFiles]
	Recursive bool   // also the directories below, except in other file systems
	Entries   bool   // events have an Entry
}

// EventKind is the kind of an [Event].
type EventKind string

// The kinds of events, as inotify(7) reports them.
const (
	EventCreate   EventKind = "create"   // a file was made, or moved here
	EventWrite    EventKind = "write"    // its content has changed
	EventRemove   EventKind = "remove"   // it was removed
	EventRename   EventKind = "rename"   // it was moved away from this name; its new name, if in the directory, has a create
	EventChmod    EventKind = "chmod"    // its permissions, owner, times or extended attributes have changed
	EventOverflow EventKind = "overflow" // events were lost, or a directory is not watched: see Name
)

// Event is a change in a watched directory.
type Event struct {
	Kind EventKind
	// Name is the path of the file, relative to the watched directory. It is written by the box. Of an overflow: the directory whose
	// events were lost, or are not reported at all because it is unreadable, too deep or one too many; empty: any number of events of
	// all kinds was lost.
	Name []byte
	// Entry describes the file when the event was read, if it existed and [WatchOptions.Entries] is set. Its Name is the last of Name.
	Entry *Info
}

// watchQuery selects the directory and the events of a watch.
type watchQuery struct {
	Path      string `json:"path,omitempty" doc:"a directory: absolute, or below /workspace/home; absent: /workspace/home" example:"src"`
	Recursive bool   `json:"recursive,omitempty" doc:"also the directories below, except in other file systems"`
	Entries   bool   `json:"entries,omitempty" doc:"describe the file of each event, if it still exists"`
	User      string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

// watchEventView is one line of a watch.
type watchEventView struct {
	Type  EventKind       `json:"type" doc:"rename: it was moved away from this name. overflow: events were lost, so read the directory again; with a path: only those below it, which may be unreadable or one directory too many" enum:"create write remove rename chmod overflow"`
	Path  string          `json:"path,omitempty" doc:"relative to the watched directory; bytes that are not UTF-8 are shown as U+FFFD" example:"src/main.py"`
	Entry *watchEntryView `json:"entry,omitempty" doc:"with entries=true: the file, if it existed when the event was read"`
}

// SchemaName returns the name of the type in the OpenAPI document.
func (watchEventView) SchemaName() string { return "fileEvent" }

// watchEntryView describes the file of an event.
type watchEntryView struct {
	Name    string `json:"name" example:"main.py"`
	Type    string `json:"type" enum:"file directory symlink other"`
	Size    int64  `json:"size"`
	ModTime string `json:"mod_time" format:"date-time"`
	Mode    string `json:"mode" doc:"permissions, octal" example:"0644"`
	ownerView
}

// watchEndView is the last line of a watch that the gateway ends.
type watchEndView struct {
	Type  string `json:"type" enum:"end"`
	Error string `json:"error" doc:"why the watch has ended"`
}

// SchemaName returns the name of the type in the OpenAPI document.
func (watchEndView) SchemaName() string { return "fileWatchEnd" }

var (
	// errGone ends the watch of a client that no longer reads.
	errGone     = errors.New("the client has gone")
	errStopping = api.Errorf(api.ErrUnavailable, "the gateway is stopping")
)

// watch handles GET watch. The response begins when the watch is in place.
func (e *Endpoints) watch(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q watchQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	dir, err := e.resolve(r, q.User, "path", q.Path, true)
	if err != nil {
		return rest.Reply{}, err
	}
	if e.Watcher == nil {
		return rest.Reply{}, api.Errorf(api.ErrNotSupported, "this gateway does not watch files")
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-ctx.Done():
		case <-e.Stopping:
			cancel(errStopping)
		}
	}()
	var out *rest.Paced
	err = e.Watcher.WatchFiles(ctx, box.ID, dir, WatchOptions{User: q.User, Recursive: q.Recursive, Entries: q.Entries}, func(events []Event) error {
		if out == nil {
			out = rest.BeginPaced(w, stream.NDJSON)
		}
		return writeLines(out, viewEvents(events)...)
	})
	if out == nil {
		return rest.Reply{}, err
	}
	defer out.Close()
	if r.Context().Err() == nil && !errors.Is(err, errGone) {
		_, body := problem.StatusOf(err)
		_ = writeLines(out, watchEndView{"end", body.Error})
	}
	return rest.Reply{Written: true}, nil
}

// writeLines writes values, one on each line, and sends them.
func writeLines(out *rest.Paced, values ...any) error {
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	for _, v := range values {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	if _, err := out.Write(stream.EscapeControls(lines.Bytes())); err != nil {
		return errGone
	}
	if out.Flush() != nil {
		return errGone
	}
	return nil
}

func viewEvents(events []Event) (views []any) {
	for _, event := range events {
		v := watchEventView{Type: event.Kind, Path: strings.ToValidUTF8(string(event.Name), "\uFFFD")}
		if info := event.Entry; info != nil {
			v.Entry = &watchEntryView{
				Name: path.Base(v.Path), Type: info.Type, Size: info.Size, ModTime: modTime(*info), Mode: octal(*info), ownerView: viewOwner(*info),
			}
		}
		views = append(views, v)
	}
	return views
}
