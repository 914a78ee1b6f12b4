package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"boxgate/internal/required"
	"boxgate/policy"
)

// Policies are the named policies of resources. A resource is NAMESPACE/NAME.
type Policies interface {
	// Resources returns the resources with a policy.
	Resources() []string
	// ApplyResource makes or replaces the policy of a resource, for all boxes that follow it. After an error they keep the earlier one. The
	// error is a document.InvalidError if the policy is not valid.
	ApplyResource(ctx context.Context, resource string, spec policy.Spec) error
	// CloseResource ends the policy of a deleted resource: boxes that follow it are closed.
	CloseResource(ctx context.Context, resource string) error
}

// Config configures a [Controller].
type Config struct {
	Server   Server
	Node     string // names the gateway in the status of resources
	Policies Policies
	Log      *zap.Logger
}

// Times of a controller.
const (
	resync    = 10 * time.Minute // between complete lists at most
	retry     = 30 * time.Second // after a policy could not be applied, doubled up to resync while lists have such a policy
	applyTime = 30 * time.Second // for one policy
	leastWait = time.Second      // after a failure, doubled up to mostWait, and between watches
	mostWait  = time.Minute
)

// Controller follows the resources of a cluster.
type Controller struct {
	Config
	client   *client
	statuses *statuses
	listed   atomic.Int64 // when a list was last complete, in Unix seconds
	logging  *rate.Limiter
	failures int // lists in succession with a policy that could not be applied
	// leastWait and resync, except in tests.
	wait, resync time.Duration
}

// New returns a controller. It has no effect until [Controller.Run].
func New(c Config) (*Controller, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	api := newClient(c.Server)
	return &Controller{Config: c, client: api, statuses: newStatuses(api, c.Log), logging: rate.NewLimiter(1, 20), wait: leastWait, resync: resync}, nil
}

// Listed returns when the resources were last known completely; the zero time: never.
func (c *Controller) Listed() time.Time {
	if at := c.listed.Load(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}

// Run follows the resources until ctx is done. Call it after the boxes of an earlier run were recovered, once at a time. While the API server does
// not answer, all policies stay as they are.
func (c *Controller) Run(ctx context.Context) {
	go c.statuses.run(ctx)
	for wait := c.wait; ctx.Err() == nil; {
		began := time.Now()
		if err := c.follow(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("the BoxgatePolicies of the cluster cannot be followed; their last known policies stay in force", zap.Error(err))
		}
		if time.Since(began) > retry/2 {
			wait = c.wait
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait = min(2*wait, mostWait)
	}
}

// follow lists the resources and watches them for a while. The error is nil if a list succeeded and the watch ended as agreed, or because
// the API server no longer has the version to watch from.
func (c *Controller) follow(ctx context.Context) error {
	version, failed, err := c.list(ctx)
	if err != nil {
		return err
	}
	c.listed.Store(time.Now().Unix())
	again := time.Now().Add(c.resync)
	if failed {
		again = time.Now().Add(c.retryIn())
		c.failures++
	} else {
		c.failures = 0
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	soon := time.AfterFunc(time.Until(again), cancel) // earlier after a policy could not be applied
	defer soon.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		err := c.client.watch(ctx, version, func(e event) error {
			next, applied, err := c.changed(ctx, e)
			if err != nil {
				return err
			}
			version = next
			if !applied {
				again = earlier(again, time.Now().Add(c.retryIn()))
				soon.Reset(time.Until(again))
			}
			return nil
		})
		if isStatus(err, http.StatusGone) {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select { // an API server that ends every watch immediately is not asked without a pause
		case <-ctx.Done():
		case <-time.After(max(0, c.wait-time.Since(began))):
		}
	}
	return nil
}

// mostDoublings makes retry longer than resync.
const mostDoublings = 5

// retryIn returns the time until the next list after a policy could not be applied. A resource that is refused for good, such as one too
// many of its namespace, does not have every node list all resources twice a minute.
func (c *Controller) retryIn() time.Duration {
	return min(retry<<min(c.failures, mostDoublings), c.resync)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// list applies all resources, and closes the policies of those that no longer exist. failed reports whether any could not be applied for
// another reason than a mistake in it. If the list is not complete, no policy is closed.
func (c *Controller) list(ctx context.Context) (version string, failed bool, err error) {
	absent := map[string]bool{}
	for _, held := range c.Policies.Resources() {
		absent[held] = true
	}
	version, err = c.client.list(ctx, func(item json.RawMessage) error {
		r, err := parseResource(item)
		if err != nil {
			if c.logging.Allow() {
				c.Log.Warn("a BoxgatePolicy is left out", zap.Error(err))
			}
			return nil
		}
		delete(absent, r.ref())
		if c.apply(ctx, r) != nil {
			failed = true
		}
		return ctx.Err()
	})
	if err != nil {
		return "", failed, err
	}
	for held := range absent {
		if c.close(ctx, held) != nil {
			failed = true
		}
	}
	return version, failed, nil
}

// changed handles an event of a watch, and returns the version to watch from afterwards. applied is false if a policy should be applied
// again.
func (c *Controller) changed(ctx context.Context, e event) (version string, applied bool, err error) {
	if e.Type == eventBookmark {
		var bookmark resource
		err := json.Unmarshal(e.Object, &bookmark)
		if version = bookmark.Metadata.ResourceVersion; err == nil && version == "" {
			err = errors.New("the API server sends a bookmark without a version")
		}
		return version, true, err
	}
	r, err := parseResource(e.Object)
	if err != nil {
		return "", false, err
	}
	if version = r.Metadata.ResourceVersion; version == "" {
		return "", false, fmt.Errorf("the API server sends the resource %s without a version", r.ref())
	}
	switch e.Type {
	case eventAdded, eventModified:
		return version, c.apply(ctx, r) == nil, nil
	case eventDeleted:
		return version, c.close(ctx, r.ref()) == nil, nil
	}
	return "", false, fmt.Errorf("the API server sends an event of the type %.40q", e.Type)
}

// apply applies the policy of a resource, and reports the result in its status. It returns nil for a policy that is not valid: it stays so.
func (c *Controller) apply(ctx context.Context, r *resource) error {
	spec, err := r.parseSpec()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, applyTime)
		err = c.Policies.ApplyResource(ctx, r.ref(), spec)
		cancel()
	}
	if ctx.Err() != nil {
		return ctx.Err() // the gateway ends
	}
	now := time.Now().UTC().Format(time.RFC3339)
	if next, changed := r.Status.next(r.Metadata.Generation, c.Node, now, err); changed {
		c.statuses.add(r.Metadata, next)
		if err != nil && c.logging.Allow() {
			c.Log.Warn("a BoxgatePolicy is not applied", zap.String("resource", r.ref()), zap.Int64("generation", r.Metadata.Generation), zap.String("problem", messageOf(err)))
		}
	}
	if isInvalid(err) {
		return nil
	}
	return err
}

// close ends the policy of a deleted resource.
func (c *Controller) close(ctx context.Context, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, applyTime)
	defer cancel()
	err := c.Policies.CloseResource(ctx, resource)
	if err != nil && !errors.Is(err, context.Canceled) {
		c.Log.Error("the policy of a deleted BoxgatePolicy could not be closed; trying again", zap.String("resource", resource), zap.Error(err))
	}
	return err
}
