package kube

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// Bounds of the writing of statuses. A dropped status is written after a later list.
const (
	mostWaiting = 1000
	mostHeld    = 8 << 20 // bytes of waiting statuses, whose other conditions are text of the resource's namespace
	perSecond   = 10
)

// statuses writes the statuses of resources, apart from the controller, so that policies do not wait for them. Safe for concurrent use.
type statuses struct {
	client  *client
	log     *zap.Logger
	waiting chan written
	held    atomic.Int64 // size of those in waiting
	limit   *rate.Limiter
}

// written is the body of a request to replace a status. With a resource version, the API server refuses it if the resource has changed.
type written struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Status status `json:"status"`
}

func newStatuses(c *client, log *zap.Logger) *statuses {
	return &statuses{client: c, log: log, waiting: make(chan written, mostWaiting), limit: rate.NewLimiter(perSecond, perSecond)}
}

// add has a status written, or drops it if too many wait.
func (s *statuses) add(of metadata, next status) {
	w := written{APIVersion: apiVersion, Kind: kind, Status: next}
	w.Metadata.Namespace, w.Metadata.Name, w.Metadata.UID, w.Metadata.ResourceVersion = of.Namespace, of.Name, of.UID, of.ResourceVersion
	size := next.size()
	if s.held.Add(size) > mostHeld {
		s.held.Add(-size)
		return
	}
	select {
	case s.waiting <- w:
	default:
		s.held.Add(-size)
	}
}

// entrySize is about the size of an entry of a status without its texts.
const entrySize = 128

// size returns about how many bytes a status has.
func (s status) size() int64 {
	size := 0
	for _, c := range s.Conditions {
		size += len(c.Type) + len(c.Status) + len(c.LastTransitionTime) + len(c.Reason) + len(c.Message) + entrySize
	}
	for _, p := range s.Problems {
		size += len(p.Node) + len(p.Message) + entrySize
	}
	return int64(size)
}

// run writes statuses until ctx is done.
func (s *statuses) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-s.waiting:
			s.held.Add(-w.Status.size())
			if s.limit.Wait(ctx) != nil {
				return
			}
			s.write(ctx, w)
		}
	}
}

// write replaces a status. Another gateway may have written it, or the resource may have changed or ended: then an event follows.
func (s *statuses) write(ctx context.Context, w written) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	path := "/apis/" + apiVersion + "/namespaces/" + w.Metadata.Namespace + "/boxgatepolicies/" + w.Metadata.Name + "/status"
	_, err := s.client.read(ctx, http.MethodPut, path, nil, w, mostEvent)
	if err == nil || isStatus(err, http.StatusConflict) || isStatus(err, http.StatusNotFound) || ctx.Err() != nil {
		return
	}
	s.log.Warn("the status of a BoxgatePolicy could not be written", zap.String("resource", w.Metadata.Namespace+"/"+w.Metadata.Name), zap.Error(err))
}
