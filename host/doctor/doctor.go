// Package doctor diagnoses hosts for boxes: it makes two temporary boxes, one whose connections to the host are spliced and one whose
// are intercepted, and has [boxgate/doctor] compare them to the host's own connections.
package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"boxgate/api"
	"boxgate/config"
	"boxgate/doctor"
	"boxgate/doctor/cause"
	"boxgate/firewall/namespace"
	"boxgate/host/box"
	"boxgate/host/change"
	"boxgate/host/rules"
	"boxgate/host/state"
	"boxgate/host/usage"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/rule/legacytls"
	"boxgate/rule/lenient"
)

// ProbeCommand is the hidden command of the processes that ask a host.
const ProbeCommand = "doctor-probe"

// Config configures a [Service].
type Config struct {
	Log         *zap.Logger
	Addresses   config.Addresses
	Boxes       *state.Table
	Life        *box.Service
	Rules       *rules.Service
	Commands    *usage.Service
	Authorities *box.Authorities
	Roots       []byte `required:"false"` // trusted for servers besides the host's roots, in PEM
}

// Service diagnoses hosts, one at a time. Safe for concurrent use.
type Service struct {
	Config
	running sync.Mutex // held during a diagnosis
}

// New returns the service.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Service{Config: c}, nil
}

// allPatience bounds a diagnosis.
const allPatience = time.Minute

// dnsPort is the port of the gateway's DNS server as boxes see it.
const dnsPort = 53

// Diagnose implements the Host of [boxgate/api/doctor].
func (s *Service) Diagnose(ctx context.Context, id policy.BoxID, req api.DiagnosisRequest) (doctor.Diagnosis, error) {
	b, err := s.Boxes.Find(id)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	if !s.running.TryLock() {
		return doctor.Diagnosis{}, api.Errorf(api.ErrConflict, "another diagnosis is running; it takes up to a minute")
	}
	defer s.running.Unlock()
	ctx, cancel := context.WithTimeout(ctx, allPatience)
	defer cancel()
	r := &run{Service: s, of: b, req: req}
	defer r.remove(ctx)
	d, err := r.diagnose(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return d, api.Errorf(api.ErrUnavailable, "the diagnosis took longer than %s", allPatience)
	}
	return d, err
}

// run is one diagnosis.
type run struct {
	*Service
	of   *state.Box
	req  api.DiagnosisRequest
	made []temporary
}

// temporary is a box and its namespace.
type temporary struct {
	box.Temporary
	ns *os.File
}

func (r *run) diagnose(ctx context.Context) (doctor.Diagnosis, error) {
	now, err := r.current(ctx)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	headers, err := r.headers(now.options, nil)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	if err := r.make(ctx, headers); err != nil {
		return doctor.Diagnosis{}, err
	}
	spliced, intercepting := r.made[0], r.made[1]
	allowed, refused, err := r.addresses(ctx, spliced.ID)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	ca, err := r.Authorities.CA(ctx, intercepting.ID)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	dns := netip.AddrPortFrom(r.Addresses.GatewayV4, dnsPort)
	d, err := doctor.Diagnose(ctx, doctor.Config{
		Box: r.name(), Host: r.req.Host.String(), Port: r.req.Port, Path: r.req.Path, Addrs: allowed, Refused: refused, Roots: r.Roots, Idle: r.req.Idle, Now: now.Current, Inside: r.inside,
		Spliced: doctor.Box{NetNS: spliced.NetNS, Roots: r.Roots, DNS: dns}, Intercept: doctor.Box{NetNS: intercepting.NetNS, Roots: ca, DNS: dns},
		Ease: func(ctx context.Context, options []cause.Option) error {
			eased, err := r.headers(now.options, options)
			if err == nil {
				_, err = r.Rules.SetHeaders(ctx, intercepting.ID, eased, nil)
			}
			return err
		},
		Command: []string{"/proc/self/exe", ProbeCommand},
	})
	if err != nil && ctx.Err() == nil {
		err = api.Errorf(api.ErrUnavailable, "the diagnosis could not be made: %w", err)
	}
	return d, errors.Join(err, ctx.Err())
}

// current is how the box itself treats the host.
type current struct {
	doctor.Current
	options map[string]any // of its rule, about TLS and malformed responses
}

func (r *run) current(ctx context.Context) (current, error) {
	conn := policy.Request{Stage: policy.StageConn, Box: r.of.ID, Name: r.req.Host, Port: r.req.Port, Protocol: policy.TCP}
	e, err := r.Rules.Explain(ctx, r.of.ID, conn, false)
	if err != nil {
		return current{}, err
	}
	now := current{Current: doctor.Current{Verdict: e.Verdict.String(), Reason: string(e.Reason), Rule: e.Rule}, options: map[string]any{}}
	compiled := r.of.Policy.Load()
	if compiled == nil {
		return now, nil
	}
	now.Intercepted = compiled.Intercepts(r.req.Host, r.req.Port)
	conn.Stage, conn.Method, conn.Path = policy.StageHTTP, "GET", r.req.Path
	rule, _ := compiled.HeaderRule(conn)
	for _, effect := range rule.Effects {
		switch effect.Key() {
		case legacytls.Upstream.Key(), legacytls.Clients.Key(), lenient.Kind{}.Key():
			now.options[effect.Key()] = effect.Document()
			now.Options = append(now.Options, cause.Option(effect.Key()))
		}
	}
	return now, nil
}

// headers returns the rule of the intercepting box: the options of the box's own rule, and more of them, without any other effect on requests.
func (r *run) headers(own map[string]any, more []cause.Option) ([]policy.HeaderRule, error) {
	doc := map[string]any{"response_headers": map[string]any{"remove": []string{"X-Boxgate-Doctor"}}}
	for key, value := range own {
		doc[key] = value
	}
	for _, o := range more {
		switch o {
		case cause.UpstreamTLS:
			doc[string(o)] = "legacy"
		case cause.Lenient:
			doc[string(o)] = true
		}
	}
	text, err := json.Marshal(map[string]any{r.destination(): doc})
	if err != nil {
		return nil, err
	}
	return policy.ParseHeaderRules(text, nil)
}

// name returns the name of the box, or its ID.
func (r *run) name() string {
	if v := r.of.Shown.Load(); v != nil && v.Name != "" {
		return v.Name
	}
	return string(r.of.ID)
}

func (r *run) destination() string {
	return r.req.Host.String() + ":" + strconv.Itoa(int(r.req.Port))
}

// make makes both boxes. They may reach the host only.
func (r *run) make(ctx context.Context, headers []policy.HeaderRule) error {
	r.of.Lock()
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{r.destination()}, UpstreamProxy: r.of.Spec.UpstreamProxy}
	source := r.of.Record.Source
	r.of.Unlock()
	r.made = make([]temporary, 2)
	var group errgroup.Group
	for i, rules := range [][]policy.HeaderRule{nil, headers} {
		group.Go(func() error {
			handle, err := namespace.New()
			if err != nil {
				return fmt.Errorf("making a network namespace: %w", err)
			}
			r.made[i].ns = os.NewFile(uintptr(handle), "namespace")
			r.made[i].Temporary, err = r.Life.MakeTemporary(ctx, r.made[i].ns, source, spec, rules)
			return err
		})
	}
	return group.Wait()
}

// remove removes the boxes, also if ctx has ended.
func (r *run) remove(ctx context.Context) {
	ctx, cancel := change.Detach(ctx)
	defer cancel()
	for _, t := range r.made {
		if t.ID != "" {
			if err := r.Life.DeleteBox(ctx, t.ID); err != nil && !errors.Is(err, api.ErrNotFound) {
				r.Log.Error("a box of a diagnosis could not be removed; the next start removes it", zap.String("box", string(t.ID)), zap.Error(err))
			}
		}
		if t.ns != nil {
			_ = t.ns.Close()
		}
	}
}

// addresses returns the addresses of the host as for a box, judged as when the gateway connects for it: protected ranges and the ceiling apply.
func (r *run) addresses(ctx context.Context, id policy.BoxID) (allowed []netip.Addr, refused []doctor.Refused, err error) {
	req := policy.Request{Stage: policy.StageDial, Box: id, Name: r.req.Host, Port: r.req.Port, Protocol: policy.TCP}
	addrs, looked, err := r.Rules.Resolve(ctx, id, r.req.Host)
	if !looked && err == nil {
		e, err := r.Rules.Explain(ctx, id, req, false)
		return nil, []doctor.Refused{{Reason: string(e.Reason)}}, err
	}
	var missing interface{ NotFound() bool }
	if err != nil && !errors.As(err, &missing) && ctx.Err() != nil {
		return nil, nil, err
	}
	for _, a := range addrs {
		req.Addr = a.Unmap()
		e, err := r.Rules.Explain(ctx, id, req, false)
		switch {
		case err != nil:
			return nil, nil, err
		case e.Allowed():
			allowed = append(allowed, req.Addr)
		default:
			refused = append(refused, doctor.Refused{Address: req.Addr, Reason: string(e.Reason)})
		}
	}
	return allowed, refused, nil
}
