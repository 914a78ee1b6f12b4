package exec

import (
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
)

// detached handles POST exec-detached: it starts a command and responds with its run, while the command continues like one whose
// client has disconnected. The output beyond that of the run is discarded. A command that fails before it starts is an error response
// if that is known within [headerDelay], and a failed run otherwise.
func (e *Endpoints) detached(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	c, err := e.readCommand(w, r)
	if err != nil {
		return rest.Reply{}, err
	}
	started := make(chan *history.Run, 1)
	c.started = func(run *history.Run) { started <- run }
	unread := writerFunc(func([]byte) (int, error) { return 0, errUnread })
	done := e.start(r.Context(), c, unread, unread, func() {})
	run := <-started // before anything of the box can delay it
	early := time.NewTimer(headerDelay)
	defer early.Stop()
	select {
	case end := <-done:
		if end.err != nil {
			return rest.Reply{}, end.err
		}
	case <-early.C:
	case <-r.Context().Done():
		return rest.Reply{}, r.Context().Err()
	}
	view, known := e.History.Find(c.box, run.ID())
	if !known { // the box was deleted
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "box %s was deleted", c.box)
	}
	return rest.Reply{Status: http.StatusAccepted, Body: view}, nil
}
