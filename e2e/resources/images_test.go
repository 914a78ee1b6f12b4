package resources

import (
	"context"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// The default image supports the runtimes node and python with their usual package managers.
func TestRuntimesHaveTheirPackageManagers(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	node := w.Create(map[string]any{"runtime": "node"})
	harness.Contains(t, w.MustSh(node, `
		mkdir -p lib && cd lib && echo '{"name":"mine","version":"1.0.0","bin":"cli.js"}' >package.json &&
		printf '#!/usr/bin/env node\nconsole.log("it " + "runs")\n' >cli.js && chmod +x cli.js && npm pack --silent &&
		npm install --silent --offline --global ./mine-1.0.0.tgz && mine && npx --version`), "it runs", "mine-1.0.0.tgz")
	python := w.Create(map[string]any{"runtime": "python"})
	harness.Contains(t, w.MustSh(python, `
		mkdir pkg && cd pkg && printf 'from setuptools import setup\nsetup(name="mine", version="1.0", py_modules=["mine"])\n' >setup.py &&
		echo 'said = "im" + "ported"' >mine.py && pip install --quiet --no-index --no-build-isolation . && cd / && python -c 'import mine; print(mine.said)' &&
		python -m venv /tmp/env && /tmp/env/bin/pip --version`), "imported", "/tmp/env/")
	for _, box := range []string{node, python} {
		w.MustDelete(box)
	}
}

// A runtime whose image this host cannot pull is refused with a fix, and no box is created.
func TestRuntimeThatCannotBePulled(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	for runtime, says := range map[string]string{
		"golang":      "docker.io/library/golang:1 cannot be pulled: let this host reach index.docker.io",
		"ruby-alpine": "docker save",
		"cobol":       "no image is configured",
	} {
		err := w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{"runtime": runtime}, nil)
		if err == nil {
			t.Fatalf("%s: a box was made", runtime)
		}
		harness.Contains(t, err.Error(), "/runtime", says)
	}
	var boxes []any
	if err := w.Client.Do(t.Context(), "GET", "/v2/box", nil, &boxes); err != nil || len(boxes) != 0 {
		t.Errorf("%v, %v", boxes, err)
	}
}

// The first box of a runtime pulls the image, which its state shows. The image is listed, and cannot be removed while
// the box exists.
func TestImageIsPulledForTheFirstBox(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	var asked sync.Once
	pulling := make(chan struct{})
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	images := t.TempDir()
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Launcher.ImageDir, c.Launcher.Images["tiny"] = images, "127.0.0.1:5000/tiny:v1"
	}})
	ln, err := w.Net.Gateway().Listen("tcp", "127.0.0.1:5000") // the namespace has no other server
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			asked.Do(func() { close(pulling) })
			<-proceed
		}
		inner.ServeHTTP(rw, r)
	})}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { server.Close() })
	pushTiny(t, inner)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var shown lab.SyncBuffer
	create := w.Command(t.Context(), "box", "create", "--runtime", "tiny", "--name", "first")
	create.Stdout, create.Stderr = &shown, &shown
	if err := create.Start(); err != nil {
		t.Fatal(err)
	}
	<-pulling
	var box struct{ Status, Progress string }
	w.Until("the box says that its image is being pulled", func() bool {
		return w.Client.Do(t.Context(), "GET", "/v2/box/first", nil, &box) == nil && box.Status == "creating" && strings.Contains(box.Progress, "pulling")
	})
	limited, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := shown.Await(limited, "preparing the image"); err != nil { // the command shows the progress
		t.Error(err)
	}
	close(proceed)
	if err := create.Wait(); err != nil {
		t.Fatalf("%v: %s", err, shown.String())
	}
	w.Until("the box is ready", func() bool {
		return w.Client.Do(t.Context(), "GET", "/v2/box/first", nil, &box) == nil && box.Status == "idle"
	})
	harness.Contains(t, w.Run(0, nil, "", "image", "list"), "127.0.0.1:5000/tiny:v1")
	harness.Contains(t, w.Run(1, nil, "", "image", "rm", "tiny"), "in use")
	w.MustDelete("first")
	harness.Contains(t, w.Run(0, nil, "", "image", "rm", "tiny"), "removed")
	if strings.Contains(w.Run(0, nil, "", "image", "list"), "tiny") {
		t.Error("it is still listed")
	}
	harness.Contains(t, w.LogText(), "unpacking layer 1 of 1")
}
