package foreign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// dockerSocket is where the Docker daemon of this host listens: DOCKER_HOST if it names a socket, as for Docker's own
// command.
func dockerSocket() string {
	if path, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		return path
	}
	return "/var/run/docker.sock"
}

// errNoContainer says that Docker answered, and has no such container.
var errNoContainer = errors.New("there is no such container in Docker")

// container is a container of Docker.
type container struct {
	ID  string // in full; never used again, other than the name
	PID int    // of its first process; 0 unless it runs

	Started string // when it did the last time, as Docker writes it
}

// inspect asks Docker for a container by its ID or name.
func inspect(ctx context.Context, ref string) (container, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body, err := askDocker(ctx, "/containers/"+url.PathEscape(ref)+"/json")
	if errors.Is(err, errNoContainer) {
		return container{}, fmt.Errorf("%w: %q", err, ref)
	}
	if err != nil {
		return container{}, err
	}
	defer body.Close()
	var answer struct {
		ID    string `json:"Id"`
		State struct {
			Pid       int
			StartedAt string
		}
	}
	if err := json.NewDecoder(io.LimitReader(body, 4<<20)).Decode(&answer); err != nil {
		return container{}, fmt.Errorf("unexpected answer from Docker: %w", err)
	}
	return container{ID: answer.ID, PID: max(answer.State.Pid, 0), Started: answer.State.StartedAt}, nil
}

// askDocker makes a request to the daemon and returns the body of its answer, which ends with ctx at the latest.
func askDocker(ctx context.Context, path string) (io.ReadCloser, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", dockerSocket())
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("no answer from Docker: %w", err)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return nil, errNoContainer
	}
	return nil, fmt.Errorf("unexpected answer from Docker: %s", res.Status)
}

// Events calls started once Docker reports what happens to containers, with those since a time, and then event with the ID of
// each container that starts or ends. It returns when the daemon goes away or ctx ends, always with an error.
func Events(ctx context.Context, since time.Time, started func(), event func(container string)) error {
	query := url.Values{
		"since":   {strconv.FormatInt(since.Unix(), 10)},
		"filters": {`{"type":["container"],"event":["start","die","destroy"]}`},
	}
	body, err := askDocker(ctx, "/events?"+query.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	started()
	for events := json.NewDecoder(body); ; {
		var e struct{ Actor struct{ ID string } }
		if err := events.Decode(&e); err != nil {
			return fmt.Errorf("the events of Docker ended: %w", err)
		}
		event(e.Actor.ID)
	}
}
