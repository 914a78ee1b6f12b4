package approvals

import (
	"context"
	"sync"

	"boxgate/api"
)

// handing is the progress of a replacement of the gateway's process: it closes the store, and later another process serves.
type handing struct {
	once     *[2]sync.Once
	released chan struct{} // closed: the store is closed
	retired  chan struct{} // closed: another process serves new connections
}

func newHanding() handing {
	return handing{&[2]sync.Once{}, make(chan struct{}), make(chan struct{})}
}

// errReplaced refuses what only the process with the store can do.
var errReplaced = api.Errorf(api.ErrUnavailable, "the gateway is being replaced: repeat the request")

// Release ends the use of the store, which another process opens next. Requests of boxes wait from then on. It may be called again.
func (s *Service) Release() { s.handing.once[0].Do(func() { close(s.handing.released) }) }

// Retire answers what waits: another process serves, or will once this one has stopped, and has the answers. It may be called again.
func (s *Service) Retire() {
	s.Release()
	s.handing.once[1].Do(func() { close(s.handing.retired) })
}

func (h *handing) isReleased() bool {
	select {
	case <-h.released:
		return true
	default:
		return false
	}
}

// Serves reports whether this process has the requests of boxes. During a replacement it waits until another process serves, or ctx
// ends, and returns false: the box has to make its request again, on another connection.
func (s *Service) Serves(ctx context.Context) bool {
	if !s.handing.isReleased() {
		return true
	}
	select {
	case <-s.handing.retired:
	case <-ctx.Done():
	}
	return false
}

// orReplaced returns an error of the store, or the reason if the store was closed.
func (s *Service) orReplaced(err error) error {
	if err != nil && s.handing.isReleased() {
		return errReplaced
	}
	return err
}
