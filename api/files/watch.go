package files

import (
	"context"

	"boxgate/policy"
)

// Watcher reports changes of files.
type Watcher interface {
	// WatchFiles reports the changes of a directory of a box until ctx ends, after starting the box if necessary. The first call of emit
	// has no events: it tells that every later change is reported. Calls of emit do not overlap; while one lasts, the kernel queues the
	// events of the box, and drops them once its queue is full, which is an event of its own ([EventOverflow]). The watch ends when emit
	// returns an error. It does not keep the box awake, and survives a pause.
	//
	// The error is never nil: that of emit, the cause of ctx, or why the watch could not start or go on. [api.ErrNotFound]: the directory
	// does not exist, or no longer; [api.ErrLimit]: the box has too many watches, or the directory too many directories.
	WatchFiles(ctx context.Context, id policy.BoxID, path string, o WatchOptions, emit func([]Event) error) error
}

// WatchOptions are the options of [Watcher.WatchFiles].
type WatchOptions struct {
	Recursive bool // also the directories below, except in other file systems
	Entries   bool // events have an Entry
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
	// changes are not reported, because it is too deep or one too many; empty: any number of events of all kinds was lost.
	Name []byte
	// Entry describes the file when the event was read, if it existed and [WatchOptions.Entries] is set. Its Name is the last of Name.
	Entry *Info
}
