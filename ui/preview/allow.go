package preview

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"boxgate/api"
	"boxgate/api/spec"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Destination is a host and a port that a box is to reach, or more than that: a wildcard, or a range of addresses.
type Destination struct {
	Entry   amend.Entry
	pattern name.Pattern // of a name
	prefix  netip.Prefix // of addresses
}

// ParseDestination reads the fields of a form. The problems point to /host and /port. A name needs a port, an address has none.
func ParseDestination(host, port string) (d Destination, ps document.Problems) {
	host, port = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(host), ".")), strings.TrimSpace(port)
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		host = a.Unmap().String()
	}
	var err error
	switch _, isPrefix := prefixOf(host); {
	case host == "":
		ps.Add("/host", "is missing")
		return d, ps
	case isPrefix:
		if d.Entry, err = amend.ParseEntry(host); err != nil {
			ps.Add("/host", "%s", err)
		}
		d.prefix, _ = prefixOf(host)
		return d, ps
	}
	if d.pattern, err = name.ParsePattern(host); err != nil {
		ps.Add("/host", "%s", err)
		return d, ps
	}
	if base := d.pattern.Name().String(); d.pattern.IsWildcard() {
		if suffix, _ := publicsuffix.PublicSuffix(base); base == "" || suffix == base {
			ps.Add("/host", "anybody can have a name that %s covers. A policy may have such an entry, but it cannot be added here: use the policy editor", d.pattern)
			return d, ps
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	switch {
	case d.pattern.Port() != 0 && port != "" && port != strconv.Itoa(int(d.pattern.Port())):
		ps.Add("/port", "is another one than that of the host")
	case d.pattern.Port() != 0:
	case port == "":
		ps.Add("/port", "is missing: one port is opened, such as 443")
	case err != nil || number == 0:
		ps.Add("/port", "must be a number from 1 to 65535")
	default:
		d.pattern = d.pattern.WithPort(uint16(number))
	}
	if len(ps.List) == 0 {
		d.Entry, err = amend.ParseEntry(d.pattern.String())
	}
	if err != nil {
		ps.Add("/host", "%s", err)
	}
	return d, ps
}

func prefixOf(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil
}

// concerns returns the warnings for a person.
func (d Destination) concerns(now policy.Spec, lasts time.Duration) (list []Concern) {
	wide := ""
	switch {
	case d.prefix.IsValid() && d.prefix.IsSingleIP():
		wide = "This opens every port of the address, with UDP and ICMP, under any name."
	case d.prefix.IsValid():
		wide = fmt.Sprintf("This opens every port of all addresses in %s, with UDP and ICMP, under any name.", d.prefix)
	case d.pattern.IsWildcard():
		wide = fmt.Sprintf("This opens every name below %s, and names that do not exist yet.", d.pattern.Name())
	}
	if wide != "" {
		if lasts == 0 {
			wide += " It stays open until somebody removes it."
		}
		list = append(list, Concern{wide, true})
	}
	if c, ok := suspicionOf(now, d.pattern); ok && !d.prefix.IsValid() {
		list = append(list, c)
	}
	return list
}

// Allowance is the preview of an entry that allows a destination.
type Allowance struct {
	Destination
	Lasts   time.Duration // 0: for good
	Version uint64        // of the policy in force
	// Refused is why the entry cannot be made, or would have no effect. Then the rest is not set.
	Refused  string
	Replay   spec.Replay
	Headers  []string // header rules that cover it: the box could use the credentials in them
	Concerns []Concern
	Digest   string // of all of the above but the traffic

	change map[string]any // the body that makes a permanent entry
}

// Retype reports whether the person must type the destination again.
func (a *Allowance) Retype() bool {
	for _, c := range a.Concerns {
		if c.Retype {
			return true
		}
	}
	return false
}

// Allow previews an entry that allows a destination, for a time or, if lasts is 0, for good. Errors are those of the API.
func Allow(ctx context.Context, c Client, box string, d Destination, lasts time.Duration) (a Allowance, err error) {
	a = Allowance{Destination: d, Lasts: lasts}
	now, err := Read(ctx, c, box)
	if err != nil {
		return a, err
	}
	a.Version = now.Version
	candidate, refused := d.candidate(&now, lasts)
	if refused == "" {
		refused, err = d.closed(ctx, c, box)
	}
	if err != nil || refused != "" {
		a.Refused = refused
		return a, err
	}
	if a.change, err = bodyOf(candidate, &now); err != nil {
		return a, err
	}
	if err := c.DoIf(ctx, now.Version, "POST", replayPath(box), a.change, &a.Replay); err != nil {
		return a, err
	}
	a.Concerns, a.Headers = d.concerns(now.Spec, lasts), headersIn(a.Replay.Authority)
	a.Digest = digestOf(box, d.Entry.String(), lasts, a.Version, a.Headers, a.Replay.Authority, a.Concerns)
	return a, nil
}

// candidate returns the policy with the entry, or the reason why it cannot have the entry.
func (d Destination) candidate(now *State, lasts time.Duration) (policy.Spec, string) {
	idle, err := d.Entry.Idle(now.Spec, true)
	switch {
	case err != nil:
		return policy.Spec{}, err.Error()
	case idle != "":
		return policy.Spec{}, "The policy allows it already: " + strings.TrimPrefix(idle, "nothing to do: ") + ". A denial nevertheless is that of a request rule, or of a limit."
	case lasts > 0:
		return amend.Beside(now.Spec, []amend.Entry{d.Entry}, nil), ""
	case now.Named != "":
		return policy.Spec{}, fmt.Sprintf("The box follows the named policy %s, and a permanent entry would be one of all its boxes. Change that policy, or allow the destination for a time.", now.Named)
	}
	change, err := amend.Allow(now.Spec, d.Entry)
	if err != nil {
		return policy.Spec{}, err.Error()
	}
	return change.Spec, ""
}

// closed returns why no policy of the box can open the destination, if it is so.
func (d Destination) closed(ctx context.Context, c Client, box string) (string, error) {
	ask := map[string]any{"port": cmp.Or(d.pattern.Port(), name.HTTPSPort), "protocol": "tcp"}
	switch {
	case d.prefix.IsValid():
		ask["ip"] = d.prefix.Addr().String()
	case d.pattern.IsWildcard():
		return "", nil
	default:
		ask["host"] = d.pattern.Name().String()
	}
	var e audit.Event
	if err := c.Do(ctx, "POST", api.BoxPath(box, "egress/explain"), ask, &e); err != nil {
		return "", err
	}
	switch {
	case e.Verdict != policy.Deny:
	case policy.IsOfCeiling(e.Rule):
		return "The operator's policy.ceiling denies it, and no policy of a box can allow it.", nil
	case e.Reason == name.ReasonProtectedRange, e.Reason == name.ReasonHostPort:
		return "The address is protected: it belongs to this host or to a private or special range, and no policy of a box can allow it.", nil
	}
	return "", nil
}

// bodyOf returns the body that makes a policy, and lets the leases go on.
func bodyOf(candidate policy.Spec, now *State) (map[string]any, error) {
	data, err := json.Marshal(candidate)
	if err != nil {
		return nil, err
	}
	body := map[string]any{}
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, err
	}
	body["leases"] = now.kept()
	return body, nil
}

// Make makes the entry that was previewed. If the policy has changed since, it stays as it is, and [Changed] is true of the error.
func (a *Allowance) Make(ctx context.Context, c Client, box string) error {
	if a.Lasts == 0 {
		return c.DoIf(ctx, a.Version, "PUT", policyPath(box), a.change, nil)
	}
	lease := map[string]any{"action": api.ActionAllow, "entries": []string{a.Entry.String()}, "expires_in": int64(a.Lasts / time.Second)}
	return c.DoIf(ctx, a.Version, "POST", policyPath(box)+"/leases", lease, nil)
}

// Same reports whether a digest is that of this preview.
func (a *Allowance) Same(digest string) bool { return same(digest, a.Digest) }
