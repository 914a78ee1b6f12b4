package harness

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/internal/lab"
)

// Docker is a fake Docker daemon. It answers the part of the API that the gateway uses. Its containers are sandboxes of
// the test.
type Docker struct {
	t      *testing.T
	Socket string

	mu         sync.Mutex
	containers []*Container
	listeners  map[chan string]bool // of the events stream
	server     *http.Server         // nil: the daemon is down
	created    int
}

// Container is a container of [Docker].
type Container struct {
	docker   *Docker
	ID, Name string
	box      *ForeignBox // nil: the container is stopped
	started  time.Time
}

// NewDocker starts a daemon without containers.
func NewDocker(t *testing.T) *Docker {
	t.Helper()
	d := &Docker{t: t, Socket: filepath.Join(t.TempDir(), "docker.sock"), listeners: map[chan string]bool{}}
	d.Start()
	t.Cleanup(d.Stop)
	return d
}

// NewDockerWorld is [NewStopped] with [World.AskDocker] for a new daemon, and the gateway started.
func NewDockerWorld(t *testing.T) (*World, *Docker) {
	t.Helper()
	d := NewDocker(t)
	w := NewStopped(t, lab.Options{})
	w.AskDocker(d)
	w.StartIfStopped()
	return w, d
}

// AskDocker makes the gateway use the daemon, and obey [World.Arm], from its next start on.
func (w *World) AskDocker(d *Docker) {
	w.Env = append(w.Env, "DOCKER_HOST=unix://"+d.Socket, FaultsFile+"="+w.FaultsPath())
}

// Start starts the daemon.
func (d *Docker) Start() {
	d.t.Helper()
	ln, err := net.Listen("unix", d.Socket)
	if err != nil {
		d.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containers/{ref}/json", d.inspect)
	mux.HandleFunc("GET /events", d.events)
	server := &http.Server{Handler: mux}
	d.mu.Lock()
	d.server = server
	d.mu.Unlock()
	go func() { _ = server.Serve(ln) }()
}

// Stop stops the daemon. Its containers keep running.
func (d *Docker) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server != nil {
		d.server.Close()
		d.server = nil
	}
}

// inspect describes a container, selected by its ID, an ID prefix, or its name.
func (d *Docker) inspect(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ref := r.PathValue("ref")
	for _, c := range d.containers {
		if c.Name != ref && !strings.HasPrefix(c.ID, ref) {
			continue
		}
		pid, status := 0, "exited"
		if c.box != nil {
			pid, status = c.box.PID, "running"
		}
		fmt.Fprintf(w, `{"Id":%q,"Name":%q,"State":{"Status":%q,"Pid":%d,"StartedAt":%q}}`, c.ID, "/"+c.Name, status, pid, c.started.Format(time.RFC3339Nano))
		return
	}
	http.Error(w, `{"message":"No such container"}`, http.StatusNotFound)
}

// events streams the events of containers.
func (d *Docker) events(w http.ResponseWriter, r *http.Request) {
	if filters, err := url.QueryUnescape(r.URL.Query().Get("filters")); err != nil || !json.Valid([]byte(filters)) {
		http.Error(w, `{"message":"invalid filter"}`, http.StatusBadRequest)
		return
	}
	events := make(chan string, 1000)
	d.mu.Lock()
	d.listeners[events] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.listeners, events)
	}()
	rc := http.NewResponseController(w)
	for rc.Flush() == nil {
		select {
		case e := <-events:
			fmt.Fprintln(w, e)
		case <-r.Context().Done():
			return
		}
	}
}

// broadcast sends an event to the listeners.
func (d *Docker) broadcast(c *Container, action string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	event := fmt.Sprintf(`{"Type":"container","Action":%q,"Actor":{"ID":%q},"time":%d}`, action, c.ID, time.Now().Unix())
	for l := range d.listeners {
		l <- event
	}
}

// Run creates a container and starts it.
func (d *Docker) Run(name string) *Container {
	d.t.Helper()
	d.mu.Lock()
	d.created++
	c := &Container{docker: d, ID: fmt.Sprintf("%064x", 0x3f2a<<32+d.created), Name: name}
	d.containers = append(d.containers, c)
	d.mu.Unlock()
	c.Start()
	return c
}

// Start starts the container in a new network namespace, runs shell lines to set it up, and returns its sandbox.
func (c *Container) Start(setup ...string) *ForeignBox {
	c.docker.t.Helper()
	box := NewForeignBox(c.docker.t)
	for _, line := range setup {
		if out, code := box.Sh(line); code != 0 {
			c.docker.t.Fatalf("%s: %s", line, out)
		}
	}
	c.docker.mu.Lock()
	c.box, c.started = box, time.Now()
	c.docker.mu.Unlock()
	c.docker.broadcast(c, "start")
	return box
}

// Stop ends the processes of the container.
func (c *Container) Stop() {
	c.docker.t.Helper()
	c.docker.mu.Lock()
	box := c.box
	c.box = nil
	c.docker.mu.Unlock()
	if box != nil {
		box.End()
		c.docker.broadcast(c, "die")
	}
}

// Remove removes the container.
func (c *Container) Remove() {
	c.docker.t.Helper()
	c.Stop()
	c.docker.mu.Lock()
	c.docker.containers = slices.DeleteFunc(c.docker.containers, func(other *Container) bool { return other == c })
	c.docker.mu.Unlock()
	c.docker.broadcast(c, "destroy")
}

// Sandbox returns the sandbox of the container.
func (c *Container) Sandbox() *ForeignBox {
	c.docker.mu.Lock()
	defer c.docker.mu.Unlock()
	return c.box
}

// BoxStatus returns the status of a box and the error that the API reports for it.
func (w *World) BoxStatus(box string) (status, problem string) {
	w.T.Helper()
	var view struct{ Status, Error string }
	if err := w.Client.Get(w.T.Context(), "/v2/box/"+box, &view); err != nil {
		w.T.Fatal(err)
	}
	return view.Status, view.Error
}

// UntilStatus waits until a box has a status.
func (w *World) UntilStatus(box, status string) {
	w.T.Helper()
	w.UntilEvery(5*time.Millisecond, "the box is "+status, func() bool {
		now, _ := w.BoxStatus(box)
		return now == status
	})
}
