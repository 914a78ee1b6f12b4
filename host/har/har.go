// Package har begins captures of the requests of boxes.
package har

import (
	"context"
	"errors"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/proxy/har"
)

// Proxy records requests.
type Proxy interface {
	// Capture begins to record the requests of a box. ok is false if they are recorded already. The caller calls release at the end.
	Capture(box *policy.Box, o har.Options) (c *har.Capture, release func(), ok bool)
	// CloseBox drops the state of a box that does not exist any longer.
	CloseBox(box policy.BoxID)
}

// Service begins captures. Safe for concurrent use.
type Service struct {
	Boxes *state.Table
	Proxy Proxy
}

// Capture implements the Host of [boxgate/api/har].
func (s *Service) Capture(_ context.Context, id policy.BoxID, o har.Options) (*har.Capture, func(), error) {
	b, err := s.Boxes.Find(id)
	if err != nil {
		return nil, nil, err
	}
	c, release, ok := s.Proxy.Capture(&b.Box, o)
	if !ok {
		return nil, nil, api.Errorf(api.ErrConflict, "the requests of the box are being recorded by another call")
	}
	if _, err := s.Boxes.Find(id); err != nil { // deleted in between, perhaps before the proxy could end the capture
		release()
		if errors.Is(err, api.ErrNotFound) {
			s.Proxy.CloseBox(id)
		}
		return nil, nil, err
	}
	return c, release, nil
}
