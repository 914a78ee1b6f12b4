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

// containerPID asks Docker for the first process of a running container.
func containerPID(ctx context.Context, container string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", dockerSocket())
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/containers/"+url.PathEscape(container)+"/json", nil)
	if err != nil {
		return 0, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return 0, fmt.Errorf("no answer from Docker: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("there is no container %q in Docker (%s)", container, res.Status)
	}
	var answer struct{ State struct{ Pid int } }
	if err := json.NewDecoder(io.LimitReader(res.Body, 4<<20)).Decode(&answer); err != nil {
		return 0, fmt.Errorf("unexpected answer from Docker: %w", err)
	}
	if answer.State.Pid <= 0 {
		return 0, errors.New("the container is not running")
	}
	return answer.State.Pid, nil
}
