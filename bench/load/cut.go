package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/api"
	"boxgate/bench/stat"
)

// Change is an API call to the gateway that cuts open connections.
type Change struct {
	Socket, Key  string
	Method, Path string
	Body         map[string]any // nil: no body
}

// cut opens connections, makes the change, and measures the time until each connection is cut.
func (g *generator) cut() (Result, error) {
	conns, err := g.openIdle(g.Conns)
	defer func() { closeAbruptly(conns) }()
	if err != nil {
		return Result{}, fmt.Errorf("at %d connections: %w", len(conns), err)
	}
	watch := watchSilent
	if g.Plain {
		watch = g.watchTalking
	}
	ends := make([]time.Time, len(conns))
	var watchers sync.WaitGroup
	var sent atomic.Bool
	for i, c := range conns {
		watchers.Go(func() { ends[i] = watch(c, &sent) })
	}
	g.pause(2 * beat)
	begun := time.Now()
	sent.Store(true)
	if err := g.change(); err != nil {
		return Result{}, err
	}
	watchers.Wait()
	return g.cutResult(begun, ends)
}

func (g *generator) change() error {
	ctx, cancel := context.WithTimeout(g.ctx, patience)
	defer cancel()
	var body any
	if g.Change.Body != nil {
		body = g.Change.Body
	}
	return api.NewClient(g.Change.Socket, g.Change.Key).Do(ctx, g.Change.Method, g.Change.Path, body, nil)
}

func (g *generator) cutResult(begun time.Time, ends []time.Time) (Result, error) {
	var all stat.Histogram
	var last time.Duration
	for i, end := range ends {
		switch {
		case end.IsZero():
			return Result{}, fmt.Errorf("connection %d was not cut", i)
		case !g.Plain && end.Before(begun):
			return Result{}, fmt.Errorf("connection %d ended before the change", i)
		}
		took := max(end.Sub(begun), 0)
		last = max(last, took)
		all.Add(took)
	}
	micros := float64(last) / 1e3
	return Result{
		Units: int64(len(ends)), Seconds: max(last.Seconds(), 1e-9), TLS: g.tlsText, Last: micros,
		P50: float64(all.Quantile(0.5)) / 1e3, P99: float64(all.Quantile(0.99)) / 1e3,
	}, g.ctx.Err()
}

// watchSilent returns the time at which an idle connection ends, or zero if it does not end.
func watchSilent(c net.Conn, _ *atomic.Bool) (end time.Time) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return end
	}
	return time.Now()
}

// beat is the interval of requests over each connection that the kernel forwards. Such a connection is not closed by
// the gateway; it only stops delivering answers. After silence without an answer it counts as cut.
const (
	beat    = 100 * time.Millisecond
	silence = 2 * time.Second
)

// watchTalking returns the time of the last answer over a connection, or zero if answers do not stop.
func (g *generator) watchTalking(c net.Conn, sent *atomic.Bool) (end time.Time) {
	stop := make(chan struct{})
	defer close(stop)
	go g.sendRequests(c, stop)
	answer := make([]byte, 4096)
	limit := time.Now().Add(patience)
	for end = time.Now(); time.Now().Before(limit); end = time.Now() {
		_ = c.SetReadDeadline(time.Now().Add(silence))
		_, err := c.Read(answer)
		if err != nil && sent.Load() {
			return end
		}
		if err != nil {
			break // the connection should still be open
		}
	}
	return time.Time{}
}

// sendRequests sends requests until stop is closed or the connection fails. Connections take turns within a beat.
func (g *generator) sendRequests(c net.Conn, stop <-chan struct{}) {
	request := g.request(g.Name)
	wait := rand.N(beat)
	for {
		select {
		case <-stop:
			return
		case <-time.After(wait):
		}
		wait = beat
		if _, err := c.Write(request); err != nil {
			return
		}
	}
}
