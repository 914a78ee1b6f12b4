// Package apitest provides the environment for tests of the API: a [Host] with boxes in memory, and [Serve], which serves
// some endpoints with it as package server does.
package apitest

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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/api/files"
	"boxgate/api/problem"
	"boxgate/api/schedules"
	"boxgate/audit"
	"boxgate/doctor"
	"boxgate/observe/replay"
	"boxgate/policy"
	"boxgate/policy/authority"
	"boxgate/policy/content"
	"boxgate/policy/name"
	"boxgate/proxy/har"
)

// Key is the operator's API key.
const Key = "key-0123456789"

// Host implements the Host of every package of endpoints. It keeps boxes in memory and runs their commands as processes
// of the test. A test must hold Mu to access its fields while calls are running. Use [NewHost].
type Host struct {
	Dir string          // where commands run
	ctx context.Context // when it ends, all commands are killed
	end func()

	Mu         sync.Mutex
	ByID       map[policy.BoxID]*Box
	Global     api.HeaderState
	FleetRules api.HeaderState        // its Fleet is true if the host is in a fleet
	Env        map[string]name.Secret // of new boxes
	Created    []api.CreateRequest
	Execs      []api.ExecRequest
	Models     api.ModelUsage     // of all boxes
	Sizes      []api.TerminalSize // all resizes of sessions

	NotReady  error               // returned by Ready
	Unremoved []string            // in Capacity
	Probes    []api.SelfTestProbe // of every self-test
	Fail      error               // returned by every call, if set
	Crash     bool                // every call panics with a secret
	Unread    error               // returned by ReadTrail

	Named      map[string]api.NamedPolicy // without Boxes
	Taken      []api.Snapshot
	Keys       map[string]api.Key       // by value; in addition to [Key]
	Stored     map[string]api.KeySecret // secrets of API keys, by ID
	Passphrase string                   // of the last RotateStoreKey
	Grace      time.Duration            // of the last RotateAPIKey

	Captures  chan *har.Capture // receives captures that begin; nil: none may begin
	capturing atomic.Bool

	Addresses map[string][]netip.Addr               // of the names that Resolve looks up
	Decisions []audit.Event                         // decisions passed to AddDecision
	Versions  map[policy.BoxID][]api.PolicyDocument // the history of policies, the oldest first
	Gained    []authority.Line                      // in the answers of Replay
	follow    []chan audit.Event
	approvals []api.Approval
}

// Box is a box of a [Host].
type Box struct {
	api.Box
	Rules api.HeaderState
	URLs  map[uint16]api.URL
	Ports *api.Ports // nil: not shared

	schedules []schedules.Schedule
	asks      bool // may ask for access
}

// NewBox returns a box without rules and public URLs.
func NewBox(b api.Box) *Box {
	return &Box{Box: b, Rules: api.HeaderState{Version: 1}, URLs: map[uint16]api.URL{}}
}

// NewHost makes a host without boxes. Commands run in a temporary directory of the test.
func NewHost(t testing.TB) *Host {
	over, end := context.WithCancel(context.Background())
	return &Host{Dir: t.TempDir(), ctx: over, end: end, ByID: map[policy.BoxID]*Box{}, Env: map[string]name.Secret{}, Global: api.HeaderState{Version: 1}}
}

// Add creates a box and returns its ID.
func (h *Host) Add(t testing.TB, req api.CreateRequest) string {
	t.Helper()
	box, err := h.CreateBox(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return string(box.ID)
}

// End kills all running commands.
func (h *Host) End() { h.end() }

// beginCall begins a call: it locks the host and fails as the test has requested.
func (h *Host) beginCall() (leave func(), err error) {
	h.Mu.Lock()
	if h.Crash {
		h.Mu.Unlock()
		panic("sk-panic-secret")
	}
	return h.Mu.Unlock, h.Fail
}

// box enters the host and finds a box.
func (h *Host) box(id policy.BoxID) (b *Box, leave func(), err error) {
	leave, err = h.beginCall()
	if b = h.ByID[id]; b == nil && err == nil {
		err = api.ErrNotFound
	}
	return b, leave, err
}

// CreateBox implements the Host of [boxgate/api/boxes].
func (h *Host) CreateBox(_ context.Context, req api.CreateRequest) (api.Box, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	for _, b := range h.ByID {
		if req.Name != "" && b.Name == req.Name {
			return api.Box{}, api.Errorf(api.ErrConflict, "the name %q is taken", req.Name)
		}
	}
	if req.Runtime != "" && req.Runtime != "node" {
		return api.Box{}, problem.Invalid("/runtime", "unknown runtime; use node")
	}
	h.Created = append(h.Created, req)
	now := time.Unix(1_700_000_000, 0)
	b := &Box{URLs: map[uint16]api.URL{}, Rules: api.HeaderState{Rules: req.Headers, Version: 1}}
	b.Box = api.Box{
		ID: policy.BoxID(fmt.Sprintf("box%d", len(h.Created))), Name: req.Name, Labels: req.Labels, Size: req.Size, Runtime: req.Runtime,
		KeepAlive: req.KeepAlive, CreatedBy: req.CreatedBy, Ephemeral: req.Ephemeral, Status: api.StatusIdle, V4: netip.MustParseAddr("10.200.0.9"),
		Policy: api.PolicyState{Spec: req.Policy, Named: req.Named, Version: 1}, Hosted: req.Hosted, CreatedAt: now, UpdatedAt: now,
		Limits: req.Limits, EffectiveLimits: req.Limits.Effective(h.HostLimits()).Beside(h.HostLimits()),
	}
	if req.Ephemeral {
		b.ExpiresAt = now.Add(req.TTL)
	}
	h.ByID[b.ID] = b
	return b.Box, nil
}

// FreshBox implements [boxes.Table].
func (h *Host) FreshBox(ctx context.Context, idOrName string) (api.Box, error) {
	return h.Box(ctx, idOrName)
}

// Box implements the Finder of [boxgate/api/rest].
func (h *Host) Box(_ context.Context, idOrName string) (api.Box, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	if b := h.ByID[policy.BoxID(idOrName)]; b != nil {
		return b.Box, nil
	}
	for _, b := range h.ByID {
		if b.Name == idOrName {
			return b.Box, nil
		}
	}
	return api.Box{}, api.ErrNotFound
}

// Boxes implements the Table of [boxgate/api/boxes].
func (h *Host) Boxes(_ context.Context, f api.BoxFilter) ([]api.Box, error) {
	leave, err := h.beginCall()
	defer leave()
	var list []api.Box
	for _, id := range slices.Sorted(maps.Keys(h.ByID)) {
		if b := h.ByID[id]; f.Selects(b.Box) {
			list = append(list, b.Box)
		}
	}
	return list, err
}

// DeleteBox implements the Host of [boxgate/api/boxes].
func (h *Host) DeleteBox(_ context.Context, id policy.BoxID) error {
	_, leave, err := h.box(id)
	defer leave()
	if err == nil {
		delete(h.ByID, id)
	}
	return err
}

// UsageSamples implements [boxgate/api/boxes.Samples].
func (h *Host) UsageSamples(_ context.Context, id policy.BoxID, after time.Time) (api.UsageSamples, error) {
	_, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.UsageSamples{}, err
	}
	found := api.UsageSamples{Interval: 5 * time.Second, CPUs: 2, Memory: 4 << 30}
	for second := int64(1); second <= 3; second++ {
		if at := time.Unix(second, 0); at.After(after) {
			found.Samples = append(found.Samples, api.UsageSample{At: at, CPUs: 0.5, Memory: 100, Cache: 40, Disk: 7})
		}
	}
	return found, nil
}

// SuspendBox implements the Host of [boxgate/api/boxes].
func (h *Host) SuspendBox(_ context.Context, id policy.BoxID) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	b.Status, b.PausedAtEnd = api.StatusPaused, true
	return b.Box, nil
}

// SetEnd implements the Host of [boxgate/api/boxes].
func (h *Host) SetEnd(_ context.Context, id policy.BoxID, end api.End) (is, was api.Box, err error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return is, was, err
	}
	was = b.Box
	b.OnEnd, b.AutoResume = end.OnEnd, end.AutoResume
	return b.Box, was, nil
}

// SetLifetime implements the Host of [boxgate/api/boxes].
func (h *Host) SetLifetime(_ context.Context, id policy.BoxID, set api.Lifetime) (api.Box, time.Time, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Box{}, time.Time{}, err
	}
	was := b.ExpiresAt
	switch {
	case set.TTL > 0:
		b.ExpiresAt = time.Now().Add(set.TTL)
	case set.Extend > 0 && was.IsZero():
		return api.Box{}, was, api.Errorf(api.ErrConflict, "no end")
	case set.Extend > 0:
		b.ExpiresAt = was.Add(set.Extend)
	default:
		b.ExpiresAt, b.Ephemeral = time.Time{}, false
	}
	return b.Box, was, nil
}

// Exec implements the Host of [boxgate/api/exec].
func (h *Host) Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error) {
	_, leave, err := h.box(id)
	h.Execs = append(h.Execs, req)
	leave()
	if err != nil {
		return api.ExecResult{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	cmd := exec.CommandContext(ctx, req.Command[0], req.Command[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = h.Dir, req.Stdin, ignoreErrors{stdout}, ignoreErrors{stderr}
	for name, value := range req.Env {
		cmd.Env = append(cmd.Environ(), name+"="+value)
	}
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

// ignoreErrors ignores errors of its writer.
type ignoreErrors struct{ io.Writer }

func (s ignoreErrors) Write(b []byte) (int, error) {
	_, _ = s.Writer.Write(b)
	return len(b), nil
}

// Policy implements the Host of [boxgate/api/rules].
func (h *Host) Policy(_ context.Context, id policy.BoxID) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	return b.Policy, nil
}

// SetPolicy implements the Host of [boxgate/api/rules].
func (h *Host) SetPolicy(_ context.Context, id policy.BoxID, set api.PolicyChange, ifMatch *uint64) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	if ifMatch != nil && *ifMatch != b.Policy.Version {
		return api.PolicyState{}, api.ErrPrecondition
	}
	if set.Named != "" {
		n, known := h.Named[set.Named]
		if !known {
			return api.PolicyState{}, noNamed(set.Named, "/named")
		}
		set.Spec = n.Spec
	}
	leases := slices.DeleteFunc(slices.Clone(b.Policy.Leases), func(l api.Lease) bool {
		if set.Keep == nil {
			return l.Allow
		}
		return !slices.Contains(*set.Keep, l.LeaseEntry)
	})
	var headers *api.HeaderState
	if set.Headers != nil {
		s, err := setHeaders(&b.Rules, set.Headers.Rules, set.Headers.IfMatch)
		if err != nil {
			return api.PolicyState{}, err
		}
		headers = &s
	}
	was := b.Policy
	b.Policy = api.PolicyState{Spec: set.Spec, Named: set.Named, Version: was.Version + 1, Leases: leases}
	state := changed(b, was)
	state.Headers = headers
	return state, nil
}

// Network implements the Host of [boxgate/api/rules].
func (h *Host) Network(_ context.Context, id policy.BoxID) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	state, headers := b.Policy, b.Rules
	state.Headers = &headers
	return state, nil
}

// AddLeases implements the Host of [boxgate/api/rules].
func (h *Host) AddLeases(_ context.Context, id policy.BoxID, req api.LeaseRequest, ifMatch *uint64) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	if ifMatch != nil && *ifMatch != b.Policy.Version {
		return api.PolicyState{}, api.ErrPrecondition
	}
	start, was := time.Unix(1_700_000_000, 0), b.Policy
	for _, e := range req.Entries {
		b.Policy.Leases = append(b.Policy.Leases, api.Lease{LeaseEntry: api.LeaseEntry{Allow: req.Allow, Entry: e}, StartedAt: start, ExpiresAt: start.Add(req.Lasts), Left: req.Lasts})
	}
	b.Policy.Version++
	return changed(b, was), nil
}

// SetEnforcement implements the Host of [boxgate/api/rules].
func (h *Host) SetEnforcement(_ context.Context, id policy.BoxID, audit time.Duration, ifMatch *uint64) (api.PolicyState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.PolicyState{}, err
	}
	if ifMatch != nil && *ifMatch != b.Policy.Version {
		return api.PolicyState{}, api.ErrPrecondition
	}
	start, was := time.Unix(1_700_000_000, 0), b.Policy
	b.Policy.Leases = slices.DeleteFunc(slices.Clone(b.Policy.Leases), func(l api.Lease) bool { return l.Audit })
	if audit > 0 {
		b.Policy.Leases = append(b.Policy.Leases, api.Lease{LeaseEntry: api.LeaseEntry{Allow: true, Audit: true}, StartedAt: start, ExpiresAt: start.Add(audit), Left: audit})
	}
	b.Policy.Version++
	return changed(b, was), nil
}

// EndLeases implements the Host of [boxgate/api/rules].
func (h *Host) EndLeases(_ context.Context, id policy.BoxID, which func(api.LeaseEntry) bool, ifMatch *uint64) (api.PolicyState, error) {
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
	was := b.Policy
	b.Policy.Leases, b.Policy.Version = rest, was.Version+1
	return changed(b, was), nil
}

// changed returns the policy of a box together with the replaced one.
func changed(b *Box, was api.PolicyState) api.PolicyState {
	is := b.Policy
	is.Was = &was
	return is
}

// Explain implements the Rules of [boxgate/api/egress].
func (h *Host) Explain(_ context.Context, id policy.BoxID, req policy.Request, knowsQuery bool) (policy.Explanation, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return policy.Explanation{}, err
	}
	rule := fmt.Sprintf("%s %s %s %d %s %s %s", req.Stage, req.Name, req.Addr, req.Port, req.Protocol, req.Method, req.Path)
	if req.Fields != nil {
		rule += fmt.Sprint(req.Fields.List)
	}
	rule += req.Query
	if c := req.Content; c != nil {
		rule += fmt.Sprintf(" messages %v %s operations %v", c.Messages, c.Flaw(content.MCP), c.Operations)
	}
	d := policy.Decision{Reason: name.ReasonNotAllowed, Rule: rule, Version: b.Policy.Version}
	unseen := policy.Unseen{Query: !knowsQuery && req.Stage == policy.StageHTTP, Headers: req.Fields == nil && req.Stage == policy.StageHTTP}
	return policy.Explanation{Decision: d, Unseen: unseen, Beaten: []string{"*.beaten.example"}}, nil
}

// Replay implements the Host of [boxgate/api/rules], and checks the change like SetPolicy.
func (h *Host) Replay(_ context.Context, id policy.BoxID, set api.PolicyChange, q api.ReplayQuery, ifMatch *uint64) (api.Replay, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Replay{}, err
	}
	if ifMatch != nil && *ifMatch != b.Policy.Version || set.Headers != nil && set.Headers.IfMatch != nil && *set.Headers.IfMatch != b.Rules.Version {
		return api.Replay{}, api.ErrPrecondition
	}
	if _, known := h.Named[set.Named]; set.Named != "" && !known {
		return api.Replay{}, noNamed(set.Named, "/named")
	}
	line := replay.Line{Stage: policy.StageConn, Name: string(set.Spec.Mode) + set.Named, Count: 3, Last: q.Since}
	lines := replay.Lines{Count: 3, Lines: []replay.Line{line}}
	none := replay.Lines{Lines: []replay.Line{}}
	return api.Replay{
		Version: b.Policy.Version, Overflow: 2, Lost: 1,
		Result:    replay.Result{Opens: lines, Closes: none, Partly: none, Unknown: none, Reasons: map[replay.Why]replay.Total{}},
		Authority: authority.Difference{Gained: append([]authority.Line{}, h.Gained...), Lost: []authority.Line{}},
	}, nil
}

// Resolve implements the Rules of [boxgate/api/egress] with the names in h.Addresses.
func (h *Host) Resolve(_ context.Context, id policy.BoxID, n name.Name) ([]netip.Addr, bool, error) {
	_, leave, err := h.box(id)
	defer leave()
	addrs, ok := h.Addresses[n.String()]
	return addrs, ok, err
}

// Headers implements the Host of [boxgate/api/rules].
func (h *Host) Headers(_ context.Context, id policy.BoxID) (api.HeaderState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.HeaderState{}, err
	}
	return b.Rules, nil
}

// SetHeaders implements the Host of [boxgate/api/rules].
func (h *Host) SetHeaders(_ context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.HeaderState{}, err
	}
	return setHeaders(&b.Rules, rules, ifMatch)
}

func setHeaders(s *api.HeaderState, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	if ifMatch != nil && *ifMatch != s.Version {
		return api.HeaderState{}, api.ErrPrecondition
	}
	was := s.Rules
	*s = api.HeaderState{Rules: rules, Version: s.Version + 1}
	return api.HeaderState{Rules: rules, Version: s.Version, Was: was}, nil
}

// GlobalHeaders implements the Host of [boxgate/api/rules].
func (h *Host) GlobalHeaders(context.Context) (api.HeaderState, error) {
	leave, err := h.beginCall()
	defer leave()
	return h.Global, err
}

// SetGlobalHeaders implements the Host of [boxgate/api/rules].
func (h *Host) SetGlobalHeaders(_ context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return api.HeaderState{}, err
	}
	return setHeaders(&h.Global, rules, ifMatch)
}

var errNoFleet = api.Errorf(api.ErrNotFound, "this host is not a member of a fleet")

// FleetHeaders implements the Host of [boxgate/api/rules].
func (h *Host) FleetHeaders(context.Context) (api.HeaderState, error) {
	leave, err := h.beginCall()
	defer leave()
	if err == nil && !h.FleetRules.Fleet {
		err = errNoFleet
	}
	return h.FleetRules, err
}

// SetFleetHeaders implements the Host of [boxgate/api/rules].
func (h *Host) SetFleetHeaders(_ context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return api.HeaderState{}, err
	}
	if !h.FleetRules.Fleet {
		return api.HeaderState{}, errNoFleet
	}
	state, err := setHeaders(&h.FleetRules, rules, ifMatch)
	h.FleetRules.Fleet, state.Fleet = true, err == nil
	return state, err
}

// RotateStoreKey implements the Store of [boxgate/api/gateway].
func (h *Host) RotateStoreKey(_ context.Context, newPassphrase name.Secret) error {
	leave, err := h.beginCall()
	defer leave()
	h.Passphrase = newPassphrase.Reveal()
	return err
}

// RotateAPIKey implements the Store of [boxgate/api/gateway].
func (h *Host) RotateAPIKey(_ context.Context, grace time.Duration) error {
	leave, err := h.beginCall()
	defer leave()
	h.Grace = grace
	return err
}

// Secrets implements the Secrets of [boxgate/api/gateway].
func (h *Host) Secrets(context.Context) ([]api.SecretStatus, error) {
	leave, err := h.beginCall()
	defer leave()
	return []api.SecretStatus{{Name: "openai", Source: "file /etc/boxgate/openai.key", Valid: true, Read: time.Now()}}, err
}

// ModelUsage implements the Models of [boxgate/api/gateway].
func (h *Host) ModelUsage(context.Context) api.ModelUsage {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Models
}

// RefreshSecret implements the Secrets of [boxgate/api/gateway].
func (h *Host) RefreshSecret(ctx context.Context, name string) (api.SecretStatus, error) {
	list, err := h.Secrets(ctx)
	if err != nil || name != list[0].Name {
		return api.SecretStatus{}, api.Errorf(api.ErrNotFound, "the configuration has no secret %q", name)
	}
	return list[0], nil
}

// DerivedSecrets implements the Secrets of [boxgate/api/gateway].
func (h *Host) DerivedSecrets(name string) ([]string, bool) {
	list, err := h.Secrets(context.Background())
	return nil, err == nil && name == list[0].Name
}

// URLs implements the Host of [boxgate/api/urls].
func (h *Host) URLs(_ context.Context, id policy.BoxID) ([]api.URL, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return nil, err
	}
	var list []api.URL
	for _, port := range slices.Sorted(maps.Keys(b.URLs)) {
		list = append(list, b.URLs[port]) // includes the credentials, which the API must not show
	}
	return list, nil
}

// CreateURL implements the Host of [boxgate/api/urls].
func (h *Host) CreateURL(_ context.Context, id policy.BoxID, req api.URLRequest) (api.URL, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.URL{}, err
	}
	u := api.URL{URL: fmt.Sprintf("https://%s-%d.preview.test", id, req.Port), Port: req.Port, Bearer: req.Bearer, Basic: req.Basic, CreatedAt: time.Unix(1_700_000_000, 0)}
	if req.Bearer {
		u.Token = name.NewSecret("url-token-secret")
	}
	if req.Basic {
		u.Username, u.Password = name.NewSecret("box"), name.NewSecret("url-password-secret")
	}
	b.URLs[req.Port] = u
	return u, nil
}

// Ports implements the Host of [boxgate/api/urls].
func (h *Host) Ports(_ context.Context, id policy.BoxID) (api.Ports, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil && b.Ports == nil {
		err = api.Errorf(api.ErrNotFound, "the ports of this box are not shared")
	}
	if err != nil {
		return api.Ports{}, err
	}
	return *b.Ports, nil // includes the token, which the API must not show
}

// SharePorts implements the Host of [boxgate/api/urls].
func (h *Host) SharePorts(_ context.Context, id policy.BoxID, req api.PortsRequest) (api.Ports, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Ports{}, err
	}
	p := api.Ports{
		URL: fmt.Sprintf("https://{port}-%s.preview.test", id), Public: req.Public, Except: req.Except, Host: req.Host, HTTPS: req.HTTPS, TokenHeaders: []string{"x-port-token"},
		SharedAt: time.Unix(1_700_000_000, 0),
	}
	if !req.Public && !req.KeepToken {
		p.Token = name.NewSecret(cmp.Or(req.Token, "port-token-secret"))
		p.Fingerprint = api.TokenFingerprint(p.Token.Reveal())
	}
	b.Ports = &p
	return p, nil
}

// UnsharePorts implements the Host of [boxgate/api/urls].
func (h *Host) UnsharePorts(_ context.Context, id policy.BoxID) error {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil && b.Ports == nil {
		err = api.Errorf(api.ErrNotFound, "the ports of this box are not shared")
	}
	if err == nil {
		b.Ports = nil
	}
	return err
}

// SignURL implements the Host of [boxgate/api/urls].
func (h *Host) SignURL(_ context.Context, id policy.BoxID, port uint16, req api.LinkRequest) (api.Link, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Link{}, err
	}
	u, ok := b.URLs[port]
	if !ok {
		return api.Link{}, api.Errorf(api.ErrNotFound, "box %s has no public URL for port %d", id, port)
	}
	link := fmt.Sprintf("%s%s?boxgate_link=%s", u.URL, req.PathPrefix, strings.Join(req.Methods, "-"))
	return api.Link{URL: name.NewSecret(link), ExpiresAt: time.Unix(0, 0).Add(req.ExpiresIn)}, nil
}

// DeleteURL implements the Host of [boxgate/api/urls].
func (h *Host) DeleteURL(_ context.Context, id policy.BoxID, port uint16) error {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return err
	}
	if _, ok := b.URLs[port]; !ok {
		return api.Errorf(api.ErrNotFound, "box %s has no public URL for port %d", id, port)
	}
	delete(b.URLs, port)
	return nil
}

// RecentEvents implements the Host of [boxgate/api/egress].
func (h *Host) RecentEvents(_ context.Context, f api.EventFilter) (api.PastEvents, error) {
	leave, err := h.beginCall()
	defer leave()
	var list []audit.Event
	for _, e := range h.Decisions {
		if e.Seq > f.After && (f.Box == "" || e.Box == f.Box) && !e.Time.Before(f.Since) && (!f.Denied || e.Verdict == policy.Deny) {
			list = append(list, e)
		}
	}
	return api.PastEvents{Events: list, Run: "run1", Missing: f.After == 0}, err
}

// FollowEvents implements the Host of [boxgate/api/egress].
func (h *Host) FollowEvents(ctx context.Context, _ api.EventFilter) (api.EventStream, error) {
	leave, err := h.beginCall()
	defer leave()
	c := make(chan audit.Event, 16)
	h.follow = append(h.follow, c)
	return memoryStream(c), err
}

type memoryStream chan audit.Event

// Events implements [api.EventStream].
func (s memoryStream) Events() <-chan audit.Event { return s }

// Lost implements [api.EventStream].
func (s memoryStream) Lost() uint64 { return 3 }

// Decision returns a decision about a connection from a box to a name.
func Decision(box policy.BoxID, at int64, n string, verdict policy.Verdict) audit.Event {
	return audit.Event{Time: time.Unix(at, 0), Box: box, Stage: policy.StageConn, Name: n, Verdict: verdict, Reason: name.ReasonNotAllowed}
}

// AddDecision records an event and sends it to the followers.
func (h *Host) AddDecision(e audit.Event) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if e.Seq == 0 {
		e.Seq = uint64(len(h.Decisions) + 1)
	}
	h.Decisions = append(h.Decisions, e)
	for _, c := range h.follow {
		c <- e
	}
}

// CA implements the Authorities of [boxgate/api/gateway].
func (h *Host) CA(_ context.Context, id policy.BoxID) ([]byte, error) {
	_, leave, err := h.box(id)
	defer leave()
	return []byte("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"), err
}

// IngressCA implements the Authorities of [boxgate/api/gateway].
func (h *Host) IngressCA(context.Context) ([]byte, error) {
	leave, err := h.beginCall()
	defer leave()
	return []byte("-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n"), err
}

// IdentityKeys implements the Secrets of [boxgate/api/gateway].
func (h *Host) IdentityKeys(context.Context) (json.RawMessage, error) {
	leave, err := h.beginCall()
	defer leave()
	return json.RawMessage(`{"keys":[]}`), err
}

// Ready implements the Health of [boxgate/api/gateway].
func (h *Host) Ready(context.Context) error {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.NotReady
}

// Capacity implements the Health of [boxgate/api/gateway].
func (h *Host) Capacity(context.Context) (api.Capacity, error) {
	return api.Capacity{
		Listeners:   []api.ListenerState{{Name: "urls_https", Address: "[::]:443", Accepts: true, Connections: 3, Limit: 128}},
		Places:      []api.PlaceState{{Name: "url_requests", Used: 2, Limit: 192}},
		Descriptors: api.PlaceState{Name: "descriptors", Used: 40, Limit: 2048},
		Unremoved:   h.Unremoved,
	}, nil
}

// OpenFiles implements the Host of [boxgate/api/files].
func (h *Host) OpenFiles(context.Context, policy.BoxID, string) (files.Files, error) {
	leave, err := h.beginCall()
	defer leave()
	return nil, cmp.Or(err, api.Errorf(api.ErrUnavailable, "no files here"))
}

// SetGitIdentity implements the Host of [boxgate/api/git].
func (h *Host) SetGitIdentity(context.Context, policy.BoxID, string, string) (nowName, nowEmail string, err error) {
	leave, err := h.beginCall()
	defer leave()
	return "", "", err
}

// WebhookClient implements the Webhooks of [boxgate/api/harness].
func (h *Host) WebhookClient(policy.BoxID) (*http.Client, error) {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// PauseBox implements the Host of [boxgate/api/lifecycle].
func (h *Host) PauseBox(_ context.Context, id policy.BoxID) (api.Box, error) {
	return h.setStatus(id, api.StatusPaused)
}

// ResumeBox implements the Host of [boxgate/api/lifecycle].
func (h *Host) ResumeBox(_ context.Context, id policy.BoxID) (api.Box, error) {
	return h.setStatus(id, api.StatusIdle)
}

func (h *Host) setStatus(id policy.BoxID, s api.Status) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	b.Status = s
	return b.Box, nil
}

// SetInitCommand implements the Host of [boxgate/api/lifecycle].
func (h *Host) SetInitCommand(_ context.Context, id policy.BoxID, command string) error {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil {
		b.InitCommand = command
	}
	return err
}

// AttachBox implements the Host of [boxgate/api/boxes].
func (h *Host) AttachBox(_ context.Context, req api.AttachRequest) (api.Box, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	for _, b := range h.ByID {
		if req.Name != "" && b.Name == req.Name {
			return api.Box{}, api.Errorf(api.ErrConflict, "a box named %q exists already", req.Name)
		}
	}
	id := policy.BoxID(fmt.Sprintf("attached%d", len(h.ByID)))
	box := api.Box{ID: id, Name: req.Name, Labels: req.Labels, Status: api.StatusIdle, Attached: &req.Attached, Limits: req.Limits, EffectiveLimits: req.Limits.Effective(h.HostLimits()).Beside(h.HostLimits()), Policy: api.PolicyState{Spec: req.Policy, Version: 1}}
	h.ByID[id] = &Box{Box: box, Rules: api.HeaderState{Rules: req.Headers, Version: 1}, URLs: map[uint16]api.URL{}}
	return box, nil
}

// ReattachBox implements the Host of [boxgate/api/boxes].
func (h *Host) ReattachBox(_ context.Context, id policy.BoxID, to *api.Attached) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	switch {
	case err != nil:
		return api.Box{}, err
	case b.Attached == nil:
		return api.Box{}, api.Errorf(api.ErrConflict, "launched here")
	case to != nil:
		b.Attached = to
	}
	return b.Box, nil
}

// DetachBox implements the Host of [boxgate/api/boxes].
func (h *Host) DetachBox(_ context.Context, id policy.BoxID) error {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil && b.Attached == nil {
		err = api.Errorf(api.ErrConflict, "launched here")
	}
	if err == nil {
		delete(h.ByID, id)
	}
	return err
}

// RotateToken implements the Host of [boxgate/api/boxes].
func (h *Host) RotateToken(_ context.Context, id policy.BoxID, lifetime time.Duration) (api.RemoteToken, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil && (b.Attached == nil || b.Attached.Kind != api.AttachRemote) {
		err = api.Errorf(api.ErrConflict, "not remote")
	}
	return api.RemoteToken{Token: "bgr_new", Expires: time.Unix(1_700_000_000, 0).Add(lifetime), Listen: ":8443"}, err
}

// RevokeToken implements the Host of [boxgate/api/boxes].
func (h *Host) RevokeToken(_ context.Context, id policy.BoxID) error {
	_, err := h.RotateToken(context.Background(), id, 0)
	return err
}

// SelfTest returns a report with the probes set by the test.
func (h *Host) SelfTest(_ context.Context, id policy.BoxID) (api.SelfTestReport, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.SelfTestReport{}, err
	}
	return api.SelfTestReport{
		Box: b.ID, Mode: b.Policy.Spec.Mode, Version: b.Policy.Version, Started: time.Unix(1_700_000_000, 0),
		Duration: 1500 * time.Millisecond, Probes: h.Probes,
	}, nil
}

// Diagnose returns a diagnosis of the request, without findings.
func (h *Host) Diagnose(_ context.Context, id policy.BoxID, req api.DiagnosisRequest) (doctor.Diagnosis, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	return doctor.Diagnosis{Box: string(b.ID), Host: req.Host.String(), Port: req.Port, Path: req.Path, Verdict: doctor.Same, Millis: req.Idle.Milliseconds()}, nil
}

// Capture implements the Host of [boxgate/api/har]. The test adds entries to the capture that Captures receives.
func (h *Host) Capture(_ context.Context, id policy.BoxID, o har.Options) (*har.Capture, func(), error) {
	_, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return nil, nil, err
	}
	c := har.New(o, nil)
	if h.Captures == nil || !h.capturing.CompareAndSwap(false, true) {
		return nil, nil, api.Errorf(api.ErrConflict, "recorded by another call")
	}
	h.Captures <- c
	return c, func() { h.capturing.Store(false) }, nil
}

// StartSession runs a command as a process of the test, in its own process group.
func (h *Host) StartSession(_ context.Context, id policy.BoxID, req api.SessionRequest, stdin io.Reader, stdout, stderr io.Writer) (api.Session, error) {
	_, leave, err := h.box(id)
	leave()
	if err != nil {
		return nil, err
	}
	s := &hostSession{cmd: exec.Command(req.Command[0], req.Command[1:]...), host: h}
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = h.Dir, stdout, stderr
	for name, value := range req.Env {
		s.cmd.Env = append(s.cmd.Env, name+"="+value)
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, api.Errorf(api.ErrNotStarted, "%s cannot be started", req.Command[0])
	}
	go func() {
		_, _ = io.Copy(in, stdin)
		in.Close()
	}()
	return s, nil
}

type hostSession struct {
	cmd  *exec.Cmd
	host *Host
}

// Pid implements [api.Session].
func (s *hostSession) Pid() int { return s.cmd.Process.Pid }

// Signal implements [api.Session].
func (s *hostSession) Signal(name string) error {
	if !api.IsSessionSignal(name) {
		return fmt.Errorf("no signal %q", name)
	}
	return unix.Kill(-s.cmd.Process.Pid, unix.SignalNum("SIG"+name))
}

// Resize implements [api.Session].
func (s *hostSession) Resize(size api.TerminalSize) error {
	s.host.Mu.Lock()
	defer s.host.Mu.Unlock()
	s.host.Sizes = append(s.host.Sizes, size)
	return nil
}

// Wait implements [api.Session].
func (s *hostSession) Wait(ctx context.Context) (api.ExecResult, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.Signal("KILL") })
	defer stop()
	_ = s.cmd.Wait()
	if ctx.Err() != nil {
		return api.ExecResult{}, context.Cause(ctx)
	}
	code := s.cmd.ProcessState.ExitCode()
	if status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return api.ExecResult{ExitCode: code}, nil
}

// TakeSnapshot implements the Host of [boxgate/api/snapshots].
func (h *Host) TakeSnapshot(_ context.Context, id policy.BoxID, name string) (api.Snapshot, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Snapshot{}, err
	}
	s := api.Snapshot{ID: fmt.Sprint("snap_", len(h.Taken)), Name: name, Box: b.ID, CreatedBy: b.CreatedBy, Status: "ready", Size: 4096}
	h.Taken = append(h.Taken, s)
	return s, nil
}

// Snapshots implements the Host of [boxgate/api/boxes].
func (h *Host) Snapshots(_ context.Context, box policy.BoxID) ([]api.Snapshot, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(h.Taken), func(s api.Snapshot) bool { return box != "" && s.Box != box }), nil
}

// DeleteSnapshots implements the Host of [boxgate/api/snapshots].
func (h *Host) DeleteSnapshots(_ context.Context, ids []string) error {
	leave, err := h.beginCall()
	defer leave()
	h.Taken = slices.DeleteFunc(h.Taken, func(s api.Snapshot) bool { return slices.Contains(ids, s.ID) })
	return err
}
