package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/api/files"
	"boxgate/api/problem"
	"boxgate/api/schedules"
	"boxgate/audit"
	"boxgate/policy"
)

// memoryHost is a Host that keeps boxes in memory and runs their commands as processes of the test.
type memoryHost struct {
	dir  string          // where commands run
	over context.Context // ends commands
	end  func()

	mu      sync.Mutex
	boxes   map[policy.BoxID]*memoryBox
	global  api.HeaderState
	env     map[string]policy.Secret // of new boxes
	created []api.CreateRequest
	execs   []api.ExecRequest
	sizes   []api.TerminalSize
	events  []audit.Event
	follow  []chan audit.Event
	ready   error
	probes  []api.SelfTestProbe // of every self-test
	fail    error               // returned by every call, if set
	crash   bool                // every call panics with a secret
	unread  error               // what ReadTrail returns

	named      map[string]api.NamedPolicy // without their boxes
	snapshots  []api.Snapshot
	keys       map[string]api.Key // by the key itself, besides testKey
	passphrase string             // of the last RotateStoreKey
	grace      time.Duration      // of the last RotateAPIKey
}

type memoryBox struct {
	api.Box
	headers api.HeaderState
	urls    map[uint16]api.URL

	schedules []schedules.Schedule
}

func newMemoryHost(t testing.TB) *memoryHost {
	over, end := context.WithCancel(context.Background())
	return &memoryHost{dir: t.TempDir(), over: over, end: end, boxes: map[policy.BoxID]*memoryBox{}, env: map[string]policy.Secret{}, global: api.HeaderState{Version: 1}}
}

// enter begins a call: it locks the host and fails if the test wants that.
func (h *memoryHost) enter() (leave func(), err error) {
	h.mu.Lock()
	if h.crash {
		h.mu.Unlock()
		panic("sk-panic-secret")
	}
	return h.mu.Unlock, h.fail
}

// box enters and finds a box.
func (h *memoryHost) box(id policy.BoxID) (b *memoryBox, leave func(), err error) {
	leave, err = h.enter()
	if b = h.boxes[id]; b == nil && err == nil {
		err = api.ErrNotFound
	}
	return b, leave, err
}

func (h *memoryHost) CreateBox(_ context.Context, req api.CreateRequest) (api.Box, error) {
	leave, err := h.enter()
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	for _, b := range h.boxes {
		if req.Name != "" && b.Name == req.Name {
			return api.Box{}, api.Errorf(api.ErrConflict, "the name %q is taken", req.Name)
		}
	}
	if req.Runtime != "" && req.Runtime != "node" {
		return api.Box{}, problem.Invalid("/runtime", "unknown runtime; use node")
	}
	h.created = append(h.created, req)
	now := time.Unix(1_700_000_000, 0)
	b := &memoryBox{urls: map[uint16]api.URL{}, headers: api.HeaderState{Rules: req.Headers, Version: 1}}
	b.Box = api.Box{
		ID: policy.BoxID(fmt.Sprintf("box%d", len(h.created))), Name: req.Name, Labels: req.Labels, Size: req.Size, Runtime: req.Runtime,
		KeepAlive: req.KeepAlive, CreatedBy: req.CreatedBy, Ephemeral: req.Ephemeral, Status: api.StatusIdle, V4: netip.MustParseAddr("10.200.0.9"),
		Policy: api.PolicyState{Spec: req.Policy, Named: req.Named, Version: 1}, Hosted: req.Hosted, CreatedAt: now, UpdatedAt: now,
	}
	if req.Ephemeral {
		b.ExpiresAt = now.Add(req.TTL)
	}
	h.boxes[b.ID] = b
	return b.Box, nil
}

func (h *memoryHost) Box(_ context.Context, idOrName string) (api.Box, error) {
	leave, err := h.enter()
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	if b := h.boxes[policy.BoxID(idOrName)]; b != nil {
		return b.Box, nil
	}
	for _, b := range h.boxes {
		if b.Name == idOrName {
			return b.Box, nil
		}
	}
	return api.Box{}, api.ErrNotFound
}

func (h *memoryHost) Boxes(_ context.Context, f api.BoxFilter) ([]api.Box, error) {
	leave, err := h.enter()
	defer leave()
	var list []api.Box
	for _, id := range slices.Sorted(maps.Keys(h.boxes)) {
		if b := h.boxes[id]; f.Label == "" || slices.Contains(b.Labels, f.Label) {
			list = append(list, b.Box)
		}
	}
	return list, err
}

func (h *memoryHost) DeleteBox(_ context.Context, id policy.BoxID) error {
	_, leave, err := h.box(id)
	defer leave()
	if err == nil {
		delete(h.boxes, id)
	}
	return err
}

func (h *memoryHost) Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error) {
	_, leave, err := h.box(id)
	h.execs = append(h.execs, req)
	leave()
	if err != nil {
		return api.ExecResult{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.over, cancel)()
	cmd := exec.CommandContext(ctx, req.Command[0], req.Command[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = h.dir, req.Stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	err = cmd.Run()
	if ctx.Err() != nil {
		return api.ExecResult{}, ctx.Err()
	}
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		err = nil
	}
	if err != nil {
		return api.ExecResult{}, api.Errorf(api.ErrUnavailable, "%s cannot be started", req.Command[0])
	}
	return api.ExecResult{ExitCode: cmd.ProcessState.ExitCode(), CPU: 1500 * time.Nanosecond}, nil
}

func (h *memoryHost) Policy(_ context.Context, id policy.BoxID) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	return b.Policy, nil
}

func (h *memoryHost) SetPolicy(_ context.Context, id policy.BoxID, set api.PolicyChange, ifMatch *uint64) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	if ifMatch != nil && *ifMatch != b.Policy.Version {
		return api.PolicyState{}, api.ErrPrecondition
	}
	if set.Named != "" {
		n, known := h.named[set.Named]
		if !known {
			return api.PolicyState{}, noNamed(set.Named, "/named")
		}
		set.Spec = n.Spec
	}
	b.Policy = api.PolicyState{Spec: set.Spec, Named: set.Named, Version: b.Policy.Version + 1}
	return b.Policy, nil
}

func (h *memoryHost) AddLeases(_ context.Context, id policy.BoxID, req api.LeaseRequest, ifMatch *uint64) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	if ifMatch != nil && *ifMatch != b.Policy.Version {
		return api.PolicyState{}, api.ErrPrecondition
	}
	start := time.Unix(1_700_000_000, 0)
	for _, e := range req.Entries {
		b.Policy.Leases = append(b.Policy.Leases, api.Lease{LeaseEntry: api.LeaseEntry{Allow: req.Allow, Entry: e}, StartedAt: start, ExpiresAt: start.Add(req.Lasts), Left: req.Lasts})
	}
	b.Policy.Version++
	return b.Policy, nil
}

func (h *memoryHost) EndLeases(_ context.Context, id policy.BoxID, which func(api.LeaseEntry) bool, ifMatch *uint64) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	if ifMatch != nil && *ifMatch != b.Policy.Version {
		return api.PolicyState{}, api.ErrPrecondition
	}
	rest := slices.DeleteFunc(slices.Clone(b.Policy.Leases), func(l api.Lease) bool { return which(l.LeaseEntry) })
	if len(rest) == len(b.Policy.Leases) {
		return api.PolicyState{}, api.ErrNotFound
	}
	b.Policy.Leases, b.Policy.Version = rest, b.Policy.Version+1
	return b.Policy, nil
}

func (h *memoryHost) Explain(_ context.Context, id policy.BoxID, req policy.Request, knowsQuery bool) (policy.Decision, policy.Unseen, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return policy.Decision{}, policy.Unseen{}, err
	}
	rule := fmt.Sprintf("%s %s %s %d %s %s %s", req.Stage, req.Name, req.Addr, req.Port, req.Protocol, req.Method, req.Path)
	if req.Fields != nil {
		rule += fmt.Sprint(req.Fields.List)
	}
	d := policy.Decision{Reason: policy.ReasonNotAllowed, Rule: rule + req.Query, Version: b.Policy.Version}
	return d, policy.Unseen{Query: !knowsQuery && req.Stage == policy.StageHTTP, Headers: req.Fields == nil && req.Stage == policy.StageHTTP}, nil
}

func (h *memoryHost) Headers(_ context.Context, id policy.BoxID) (api.HeaderState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.HeaderState{}, err
	}
	return b.headers, nil
}

func (h *memoryHost) SetHeaders(_ context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.HeaderState{}, err
	}
	return setHeaders(&b.headers, rules, ifMatch)
}

func setHeaders(s *api.HeaderState, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	if ifMatch != nil && *ifMatch != s.Version {
		return api.HeaderState{}, api.ErrPrecondition
	}
	*s = api.HeaderState{Rules: rules, Version: s.Version + 1}
	return *s, nil
}

func (h *memoryHost) GlobalHeaders(context.Context) (api.HeaderState, error) {
	leave, err := h.enter()
	defer leave()
	return h.global, err
}

func (h *memoryHost) SetGlobalHeaders(_ context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	leave, err := h.enter()
	defer leave()
	if err != nil {
		return api.HeaderState{}, err
	}
	return setHeaders(&h.global, rules, ifMatch)
}

func (h *memoryHost) RotateStoreKey(_ context.Context, newPassphrase policy.Secret) error {
	leave, err := h.enter()
	defer leave()
	h.passphrase = newPassphrase.Reveal()
	return err
}

func (h *memoryHost) RotateAPIKey(_ context.Context, grace time.Duration) error {
	leave, err := h.enter()
	defer leave()
	h.grace = grace
	return err
}

func (h *memoryHost) Secrets(context.Context) ([]api.SecretStatus, error) {
	leave, err := h.enter()
	defer leave()
	return []api.SecretStatus{{Name: "openai", Source: "file /etc/boxgate/openai.key", Valid: true, Read: time.Now()}}, err
}

func (h *memoryHost) RefreshSecret(ctx context.Context, name string) (api.SecretStatus, error) {
	list, err := h.Secrets(ctx)
	if err != nil || name != list[0].Name {
		return api.SecretStatus{}, api.Errorf(api.ErrNotFound, "the configuration has no secret %q", name)
	}
	return list[0], nil
}

func (h *memoryHost) URLs(_ context.Context, id policy.BoxID) ([]api.URL, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return nil, err
	}
	var list []api.URL
	for _, port := range slices.Sorted(maps.Keys(b.urls)) {
		list = append(list, b.urls[port]) // with its credentials: the API must not show them
	}
	return list, nil
}

func (h *memoryHost) CreateURL(_ context.Context, id policy.BoxID, req api.URLRequest) (api.URL, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.URL{}, err
	}
	u := api.URL{URL: fmt.Sprintf("https://%s-%d.preview.test", id, req.Port), Port: req.Port, Bearer: req.Bearer, Basic: req.Basic, CreatedAt: time.Unix(1_700_000_000, 0)}
	if req.Bearer {
		u.Token = policy.NewSecret("url-token-secret")
	}
	if req.Basic {
		u.Username, u.Password = policy.NewSecret("box"), policy.NewSecret("url-password-secret")
	}
	b.urls[req.Port] = u
	return u, nil
}

func (h *memoryHost) SignURL(_ context.Context, id policy.BoxID, port uint16, req api.LinkRequest) (api.Link, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Link{}, err
	}
	u, ok := b.urls[port]
	if !ok {
		return api.Link{}, api.Errorf(api.ErrNotFound, "box %s has no public URL for port %d", id, port)
	}
	link := fmt.Sprintf("%s%s?boxgate_link=%s", u.URL, req.PathPrefix, strings.Join(req.Methods, "-"))
	return api.Link{URL: policy.NewSecret(link), ExpiresAt: time.Unix(0, 0).Add(req.ExpiresIn)}, nil
}

func (h *memoryHost) DeleteURL(_ context.Context, id policy.BoxID, port uint16) error {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return err
	}
	if _, ok := b.urls[port]; !ok {
		return api.Errorf(api.ErrNotFound, "box %s has no public URL for port %d", id, port)
	}
	delete(b.urls, port)
	return nil
}

func (h *memoryHost) RecentEvents(_ context.Context, f api.EventFilter) (api.PastEvents, error) {
	leave, err := h.enter()
	defer leave()
	var list []audit.Event
	for _, e := range h.events {
		if e.Seq > f.After && (f.Box == "" || e.Box == f.Box) && !e.Time.Before(f.Since) && (!f.Denied || e.Verdict == policy.Deny) {
			list = append(list, e)
		}
	}
	return api.PastEvents{Events: list, Run: "run1", Missing: f.After == 0}, err
}

func (h *memoryHost) FollowEvents(ctx context.Context, _ api.EventFilter) (api.EventStream, error) {
	leave, err := h.enter()
	defer leave()
	c := make(chan audit.Event, 16)
	h.follow = append(h.follow, c)
	return memoryStream(c), err
}

type memoryStream chan audit.Event

func (s memoryStream) Events() <-chan audit.Event { return s }
func (s memoryStream) Lost() uint64               { return 3 }

// tell records an event and sends it to the followers.
func (h *memoryHost) tell(e audit.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Seq == 0 {
		e.Seq = uint64(len(h.events) + 1)
	}
	h.events = append(h.events, e)
	for _, c := range h.follow {
		c <- e
	}
}

func (h *memoryHost) CA(_ context.Context, id policy.BoxID) ([]byte, error) {
	_, leave, err := h.box(id)
	defer leave()
	return []byte("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"), err
}

func (h *memoryHost) IngressCA(context.Context) ([]byte, error) {
	leave, err := h.enter()
	defer leave()
	return []byte("-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n"), err
}

func (h *memoryHost) IdentityKeys(context.Context) (json.RawMessage, error) {
	leave, err := h.enter()
	defer leave()
	return json.RawMessage(`{"keys":[]}`), err
}

func (h *memoryHost) Ready(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready
}

func (h *memoryHost) Capacity(context.Context) (api.Capacity, error) {
	return api.Capacity{
		Listeners:   []api.ListenerState{{Name: "urls_https", Address: "[::]:443", Accepts: true, Connections: 3, Limit: 128}},
		Places:      []api.PlaceState{{Name: "url_requests", Used: 2, Limit: 192}},
		Descriptors: api.PlaceState{Name: "descriptors", Used: 40, Limit: 2048},
	}, nil
}

func (h *memoryHost) OpenFiles(context.Context, policy.BoxID) (files.Files, error) {
	leave, err := h.enter()
	defer leave()
	return nil, cmp.Or(err, api.Errorf(api.ErrUnavailable, "no files here"))
}

func (h *memoryHost) SetGitIdentity(context.Context, policy.BoxID, string, string) (nowName, nowEmail string, err error) {
	leave, err := h.enter()
	defer leave()
	return "", "", err
}

// ErrandClient implements the Errands of [boxgate/api/harness].
func (h *memoryHost) ErrandClient(policy.BoxID) (*http.Client, error) {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}
