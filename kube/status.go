package kube

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// Bounds of the writing of statuses. A dropped status is written after a later list.
const (
	mostWaiting = 1000
	perSecond   = 10
)

// statuses writes the statuses of resources, apart from the controller, so that policies do not wait for them. Safe for concurrent use.
type statuses struct {
	client  *client
	log     *zap.Logger
	waiting chan written
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
	return &statuses{c, log, make(chan written, mostWaiting), rate.NewLimiter(perSecond, perSecond)}
}

// add has a status written, or drops it if too many wait.
func (s *statuses) add(of metadata, next status) {
	w := written{APIVersion: apiVersion, Kind: kind, Status: next}
	w.Metadata.Namespace, w.Metadata.Name, w.Metadata.UID, w.Metadata.ResourceVersion = of.Namespace, of.Name, of.UID, of.ResourceVersion
	select {
	case s.waiting <- w:
	default:
	}
}

// run writes statuses until ctx is done.
func (s *statuses) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-s.waiting:
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
