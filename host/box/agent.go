package box

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"strings"
	"time"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// agentImage returns the image with the built-in harnesses: the entry of launcher.images of that name, or the image itself.
func (l *Service) agentImage() string {
	return cmp.Or(l.cfg.Launcher.AllImages()[agents.Image], agents.Image)
}

// extendedImage is the image to which [agents.Image] adds the harnesses.
const extendedImage = "debian"

// imageFor returns the image of a box of the requested kind: with a built-in harness, the image that contains them in place of the
// one that it extends, if it is on this host. Its build takes minutes, so that no box waits for it.
func (l *Service) imageFor(req *api.CreateRequest, found string) string {
	if !agents.IsBuiltIn(req.Hosted.Agent) || req.Runtime != "" && found != extendedImage || !l.sandboxes.HasImage(l.agentImage()) {
		return found
	}
	return l.agentImage()
}

// withAgentWarnings adds warnings about what the agent of a new box lacks. The caller holds the lock of the box.
func (m *creation) withAgentWarnings(view api.Box) api.Box {
	var ps document.Problems
	h, c := view.Hosted, m.box.Policy.Load()
	r := m.box.Record
	if agents.IsBuiltIn(h.Agent) && len(r.Layers) == 0 && r.Image != m.agentImage() && (r.Runtime == "" || r.Image == extendedImage) {
		ps.Add("/agent", "the box has no %s: the image %s is not on this host. Run `gateway image build %s`, and create the box again", h.Agent, agents.Image, agents.Image)
	}
	if target, known := agents.TargetOf(h); known && c != nil {
		host, port, ok := serverOf(target.Host)
		switch rule, _ := c.HeaderRule(policy.Request{Stage: policy.StageHTTP, Name: host, Port: port, Protocol: policy.TCP, Method: "POST", Path: "/"}); {
		case !ok:
		case !allows(c, host, port):
			ps.Add("/network_policy", "does not allow %s, the server of the agent's model", target.Host)
		case len(rule.Effects) == 0:
			ps.Add("/agent_api_key", "no key is set in requests to %s: give one here, or make a header rule for all boxes", target.Host)
		case rule.OnRequests().Meter == nil && len(view.Limits.Models(m.boxes.ModelLimit)) > 0:
			ps.Add("/limits/model", "does not apply to %s, the server of the agent's model: its requests are not metered. Give the key in a header rule with meter", target.Host)
		}
	} else if agents.IsBuiltIn(h.Agent) && !known {
		ps.Add("/model", "its provider is not known to %s, so that nothing is prepared for its server: write it as provider/model, or give agent_base_url", h.Agent)
	}
	if github, _, _ := serverOf("github.com"); len(h.Skills) > 0 && c != nil && !allows(c, github, name.HTTPSPort) {
		ps.Add("/skills", "are not installed: network_policy does not allow github.com")
	}
	view.Warnings = append(view.Warnings, ps.List...)
	return view
}

// serverOf returns name and port of a host in the form of [agents.Target].
func serverOf(host string) (n name.Name, port uint16, ok bool) {
	pattern, err := name.ParsePattern(host)
	pattern = pattern.WithDefaultPort(name.HTTPSPort)
	return pattern.Name(), pattern.Port(), err == nil
}

// allows reports whether a policy allows connections to a name.
func allows(c *policy.Compiled, n name.Name, port uint16) bool {
	return c.Decide(policy.Request{Stage: policy.StageConn, Name: n, Port: port, Protocol: policy.TCP}).Allowed()
}

// skillsTimeout bounds the installation of skills in a new box.
const skillsTimeout = 2 * time.Minute

// installSkills installs the skills of a new box with an agent. Skills that cannot be installed do not prevent the box: each run
// of its agent tries again.
func (p *provisioning) installSkills(ctx context.Context) error {
	h := p.box.Hosted
	if len(h.Skills) == 0 || agents.RunnerOf(h) == nil {
		return nil
	}
	return p.unlockedStep(func() error {
		limited, cancel := context.WithTimeout(ctx, skillsTimeout)
		defer cancel()
		complaints := &firstBytes{room: 1 << 10}
		res, err := p.sandboxes.Exec(limited, p.box.ID, launcher.ExecSpec{
			Args: agents.SkillsCommand(h.Skills), Env: p.box.EnvironmentWith(nil), Stdout: io.Discard, Stderr: complaints, Operator: true,
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || res.Status != 0 {
			p.note("not all skills are installed: %s", strings.Join(strings.Fields(strings.ToValidUTF8(complaints.String(), "")), " "))
		}
		return nil
	})
}

// noteIn returns a function that adds warnings to the log of a box.
func (l *Service) noteIn(id policy.BoxID) func(string, ...any) {
	return func(format string, args ...any) { l.history.Log(id, "warn", "system", format, args...) }
}

// firstBytes keeps the first bytes that are written.
type firstBytes struct {
	bytes.Buffer
	room int
}

// Write implements [io.Writer].
func (f *firstBytes) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	_, _ = f.Buffer.Write(p[:n]) // never fails
	return len(p), nil
}
