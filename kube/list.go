package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// pageSize is the number of resources asked for in one page. It is halved for a page beyond its bound.
const pageSize = 64

// page is a page of a list.
type page struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// list calls each with every resource, as JSON, in pages, and returns the version to watch from. If it returns an error the list is not
// complete. A list without a version is read from a quorum of the store, so that it is never older than one before.
func (c *client) list(ctx context.Context, each func(json.RawMessage) error) (version string, err error) {
	size, next := pageSize, ""
	for {
		query := url.Values{"limit": {strconv.Itoa(size)}}
		if next != "" {
			query.Set("continue", next)
		}
		data, err := c.read(ctx, http.MethodGet, resourcesPath, query, nil, mostPage)
		if errors.Is(err, errTooLarge) && size > 1 {
			size /= 2
			continue
		}
		if err != nil {
			return "", err
		}
		var p page
		if err := json.Unmarshal(data, &p); err != nil || p.Items == nil || p.Metadata.ResourceVersion == "" {
			return "", errors.Join(errors.New("the API server answers without a list of resources"), err)
		}
		for _, item := range p.Items {
			if err := each(item); err != nil {
				return "", err
			}
		}
		if p.Metadata.Continue == "" {
			return p.Metadata.ResourceVersion, nil
		}
		if p.Metadata.Continue == next {
			return "", errors.New("the API server repeats a page of the list")
		}
		size, next = min(pageSize, size*2), p.Metadata.Continue
	}
}

// The types of events.
const (
	eventAdded    = "ADDED"
	eventModified = "MODIFIED"
	eventDeleted  = "DELETED"
	eventBookmark = "BOOKMARK"
	eventError    = "ERROR"
)

// event is an event of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watchTime is how long a watch lasts; the API server is asked to end it a little earlier.
const watchTime = 5 * time.Minute

// watch calls each with the changes after a version until the watch ends, which is no error, or for watchTime.
func (c *client) watch(ctx context.Context, version string, each func(event) error) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	query := url.Values{
		"watch": {"1"}, "resourceVersion": {version}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(int(watchTime.Seconds()) - 10)},
	}
	answer, err := c.do(ctx, http.MethodGet, resourcesPath, query, nil)
	if err != nil {
		return err
	}
	defer answer.Close()
	lines := bufio.NewScanner(answer)
	lines.Buffer(make([]byte, 0, 64<<10), mostEvent)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("the API server sends no event: %w", err)
		}
		if e.Type == eventError {
			return watchError(e.Object)
		}
		if err := each(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && ctx.Err() == nil {
		return err
	}
	return nil
}

// watchError is the error in an event, such as 410: the version to watch from is too old.
func watchError(object json.RawMessage) error {
	var status struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(object, &status); err != nil {
		return fmt.Errorf("the API server ends the watch with an error that is none: %w", err)
	}
	return &statusError{status.Code, status.Message}
}
