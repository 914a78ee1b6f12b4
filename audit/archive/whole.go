package archive

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// wholeFile is the name of the file that records missing decisions.
const wholeFile = "whole.json"

// maxLosers is how many boxes with missing decisions are remembered. Beyond that the earlier half of the losses is
// merged: the history of every box then counts as complete only after the latest of those.
const maxLosers = 1024

// completeness tracks since when the history is complete. Safe for concurrent use.
type completeness struct {
	path  string
	moved uint64 // the last segment of main that was moved; used only by the writer

	mu    sync.Mutex
	since time.Time                  // later decisions are complete except for lost
	lost  map[policy.BoxID]time.Time // time of the last missing decision about a box
	dirty bool                       // not all of it has been saved
}

// savedCompleteness is the form on disk.
type savedCompleteness struct {
	Moved uint64                     `json:"moved"`
	Since time.Time                  `json:"since"`
	Lost  map[policy.BoxID]time.Time `json:"lost,omitempty"`
}

// load reads the records of an earlier process. If they are unreadable, the history counts as complete from now on.
func (w *completeness) load(path string) error {
	w.path, w.lost = path, map[policy.BoxID]time.Time{}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var from savedCompleteness
	if err != nil || json.Unmarshal(data, &from) != nil {
		w.markIncomplete(time.Now())
		return nil //nolint:nilerr // the next save replaces it
	}
	w.moved, w.since = from.Moved, from.Since
	maps.Copy(w.lost, from.Lost)
	return nil
}

// save writes the records if they have changed.
func (w *completeness) save() error {
	w.mu.Lock()
	if !w.dirty {
		w.mu.Unlock()
		return nil
	}
	data, err := json.Marshal(savedCompleteness{w.moved, w.since, w.lost})
	w.dirty = false
	w.mu.Unlock()
	if err == nil {
		err = replaceFile(w.path, data)
	}
	if err != nil {
		w.mu.Lock()
		w.dirty = true
		w.mu.Unlock()
	}
	return err
}

func replaceFile(path string, data []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// markIncomplete records that any decision before a time may be missing.
func (w *completeness) markIncomplete(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.markIncompleteLocked(at)
}

func (w *completeness) markIncompleteLocked(at time.Time) {
	if !at.After(w.since) {
		return
	}
	w.since, w.dirty = at, true
	maps.DeleteFunc(w.lost, func(_ policy.BoxID, t time.Time) bool { return !t.After(at) })
}

// recordMoved records that a segment of main was moved.
func (w *completeness) recordMoved(number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moved, w.dirty = number, true
}

// addLosses records the times of the last missing decisions about boxes.
func (w *completeness) addLosses(lost map[policy.BoxID]time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for box, at := range lost {
		if at.After(w.since) && at.After(w.lost[box]) {
			w.lost[box], w.dirty = at, true
		}
	}
	if len(w.lost) > maxLosers {
		times := slices.SortedFunc(maps.Values(w.lost), time.Time.Compare)
		w.markIncompleteLocked(times[len(times)/2])
	}
}

// completeSince returns the time since when the history of a box is complete; the empty ID stands for all boxes.
func (w *completeness) completeSince(box policy.BoxID) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.since
	for of, lost := range w.lost {
		if (box == "" || of == box) && lost.After(at) {
			at = lost
		}
	}
	return at
}
