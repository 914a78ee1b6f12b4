package sandboxns

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
	"syscall"
	"time"
)

// dockerSocket returns the path of this host's Docker socket: that of DOCKER_HOST if it is a Unix socket, as for the
// docker command, or the default.
func dockerSocket() string {
	if path, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		return path
	}
	return "/var/run/docker.sock"
}

// errNoContainer is the error if Docker does not know a container.
var errNoContainer = errors.New("there is no such container in Docker")

// container is a Docker container.
type container struct {
	ID  string // the full ID, which is never reused, unlike the name
	PID int    // of its first process; 0 unless it runs

	Started string // time of its last start, as formatted by Docker
}

// inspect queries Docker for a container by its ID or name.
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

// askDocker sends a GET request to the daemon and returns the response body, which ends when ctx is done at the latest.
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
		if number, ok := errors.AsType[syscall.Errno](err); ok { // without the system call
			err = number
		}
		return nil, fmt.Errorf("no answer from Docker at %s: is it running? (%w)", dockerSocket(), err)
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

// Events follows Docker's container events, including past ones since a time. It calls started once the stream is open,
// then event with the ID of each container that starts or ends. It returns when the daemon goes away or ctx is done,
// always with an error.
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
