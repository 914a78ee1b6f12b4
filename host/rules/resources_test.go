package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/store"
)

// apply applies the policy of a resource.
func (g *gateway) apply(resource string, spec policy.Spec) {
	g.t.Helper()
	if err := g.ApplyResource(g.t.Context(), resource, spec); err != nil {
		g.t.Fatal(err)
	}
}

// attachPod makes the record of a box that of a pod NAMESPACE/NAME.
func (g *gateway) attachPod(id policy.BoxID, pod string) {
	g.t.Helper()
	b, err := g.boxes.Find(id)
	if err != nil {
		g.t.Fatal(err)
	}
	b.Record.Attached = &store.Attached{Kind: api.AttachCNI, Pod: pod}
}

// newFollowers returns a gateway with the resource team/web, which opens everything, and the boxes b1 and b2, pods of team that follow it.
func newFollowers(t *testing.T) *gateway {
	t.Helper()
	g, _ := newLeasing(t)
	g.addBox("b2")
	g.apply("team/web", allowAll)
	for _, id := range []policy.BoxID{"b1", "b2"} {
		g.attachPod(id, "team/agent")
		if _, err := g.SetPolicy(t.Context(), id, api.PolicyChange{Named: "team.web"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func (g *gateway) modes(ids ...policy.BoxID) (modes []policy.Mode) {
	for _, id := range ids {
		modes = append(modes, g.state(id).mode)
	}
	return modes
}

// A resource changes the policy of the pods that follow it, and its deletion closes them; a pod of it opens when it is made again.
func TestResourcesOfPods(t *testing.T) {
	t.Parallel()
	g := newFollowers(t)
	version := g.named("team.web").Version
	g.apply("team/web", allowAll)
	if now := g.named("team.web").Version; now != version {
		t.Errorf("an unchanged policy has version %d after %d", now, version)
	}
	g.apply("team/web", denyAll)
	if modes := g.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) {
		t.Errorf("after a change: %q", modes)
	}
	g.apply("team/web", allowAll)
	if err := g.CloseResource(t.Context(), "team/web"); err != nil {
		t.Fatal(err)
	}
	if modes := g.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) || g.state("b1").open {
		t.Errorf("after the deletion: %q", modes)
	}
	if list := g.Resources(); !slices.Equal(list, []string{"team/web"}) {
		t.Errorf("resources with followers: %q", list)
	}
	g.addBox("b3")
	g.attachPod("b3", "team/other")
	if _, err := g.SetPolicy(t.Context(), "b3", api.PolicyChange{Named: "team.web"}, nil); err == nil || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("a pod follows a deleted resource: %v", err)
	}
	g.apply("team/web", allowAll)
	if modes := g.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeAllowAll, policy.ModeAllowAll}) {
		t.Errorf("made again: %q", modes)
	}
	for _, id := range []policy.BoxID{"b1", "b2"} {
		if _, err := g.SetPolicy(t.Context(), id, api.PolicyChange{Spec: denyAll}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(g.CloseResource(t.Context(), "team/web"), g.CloseResource(t.Context(), "team/web")); err != nil || len(g.Resources()) != 0 {
		t.Errorf("without followers: %v, %q", err, g.Resources())
	}
}

// A policy that is not valid, or that a box cannot take, leaves the last one in force everywhere.
func TestRefusedResourcesKeepTheLastPolicy(t *testing.T) {
	t.Parallel()
	g := newFollowers(t)
	g.apply("team/web", denyAll)
	err := g.ApplyResource(t.Context(), "team/web", policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"not a host"}})
	if _, ok := errors.AsType[*document.InvalidError](err); !ok {
		t.Errorf("a policy with a mistake: %v", err)
	}
	fails := true
	g.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
		if id == "b2" && fails {
			fails = false
			return errFake
		}
		return nil
	}
	if err := g.ApplyResource(t.Context(), "team/web", allowAll); err == nil {
		t.Error("applied although the kernel refuses it")
	}
	if modes := g.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) {
		t.Errorf("boxes have %q", modes)
	}
	if n := g.named("team.web"); n.Spec.Mode != policy.ModeDenyAll {
		t.Errorf("the resource has %s", n.Spec.Mode)
	}
	g.apply("team/web", allowAll)

	// A follower with a mistake of its own is a problem of this gateway, not of the resource.
	b, err := g.boxes.Find("b1")
	if err != nil {
		t.Fatal(err)
	}
	b.Headers = []policy.HeaderRule{{}}
	err = g.ApplyResource(t.Context(), "team/web", denyAll)
	if _, ok := errors.AsType[*document.InvalidError](err); ok || !errors.Is(err, api.ErrConflict) {
		t.Errorf("a follower with a mistake: %v", err)
	}
}

// The policy of a resource is for pods of its namespace alone, whoever asks and whatever the pod is called.
func TestAttackPolicyOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	g, _ := newLeasing(t)
	g.apply("team/web", allowAll)
	b, err := g.boxes.Find("b1")
	if err != nil {
		t.Fatal(err)
	}
	for name, attached := range map[string]*store.Attached{
		"a launched box":           nil,
		"another namespace":        {Kind: api.AttachCNI, Pod: "other/agent"},
		"a longer namespace":       {Kind: api.AttachCNI, Pod: "team2/agent"},
		"a pod named like it":      {Kind: api.AttachCNI, Pod: "other/team"},
		"no pod":                   {Kind: api.AttachCNI},
		"a pod without namespace":  {Kind: api.AttachCNI, Pod: "team"},
		"an empty namespace":       {Kind: api.AttachCNI, Pod: "/team/agent"},
		"a container of Docker":    {Kind: api.AttachDocker, Pod: "team/agent"},
		"a container of OCI":       {Kind: api.AttachOCI, Pod: "team/agent"},
		"a sandbox elsewhere":      {Kind: api.AttachRemote, Pod: "team/agent"},
		"the namespace with a dot": {Kind: api.AttachCNI, Pod: "team.web/agent"},
	} {
		b.Record.Attached = attached
		if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Named: "team.web"}, nil); err == nil || !strings.Contains(err.Error(), "pods of its namespace alone") {
			t.Errorf("%s follows it: %v", name, err)
		}
		if _, err := g.shared.NamedFor("team.web", "/named", attached); err == nil {
			t.Errorf("%s is created with it", name)
		}
	}
	if g.state("b1").mode != policy.ModeDenyAll {
		t.Error("the box is open")
	}
}

// A resource replaces no policy with another owner, nor the reverse.
func TestAttackResourceTakesAName(t *testing.T) {
	t.Parallel()
	g, _ := newLeasing(t)
	if _, err := g.replaceNamed(t.Context(), "team.web", nil, store.Policy{Spec: denyAll}); err != nil { // as an older gateway could have
		t.Fatal(err)
	}
	if err := g.ApplyResource(t.Context(), "team/web", allowAll); !errors.Is(err, api.ErrConflict) {
		t.Errorf("replaced the operator's policy: %v", err)
	}
	if err := g.CloseResource(t.Context(), "team/web"); err != nil || g.named("team.web").Name == "" {
		t.Errorf("deleted the operator's policy: %v", err)
	}
	g.apply("team/api", denyAll)
	if _, err := g.SetNamedPolicy(t.Context(), "team.api", allowAll, nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("the operator replaced that of a resource: %v", err)
	}
	if n := g.named("team.api"); n.Spec.Mode != policy.ModeDenyAll {
		t.Errorf("it has %s", n.Spec.Mode)
	}
}

// One namespace has at most its share of policies, and resources take none of the operator's.
func TestAttackManyResources(t *testing.T) {
	t.Parallel()
	all := map[string]store.Policy{}
	add := func(resource string) error {
		next := store.Policy{Spec: denyAll, Resource: resource}
		err := mayHold(all, api.ResourceName(resource), next)
		if err == nil {
			all[api.ResourceName(resource)] = next
		}
		return err
	}
	refused := 0
	for i := range 2 * mostOfNamespace {
		if add(fmt.Sprintf("team/p%d", i)) != nil {
			refused++
		}
	}
	if refused != mostOfNamespace || add("other/web") != nil {
		t.Errorf("refused %d of one namespace", refused)
	}
	for i := range 2 * mostResources {
		_ = add(fmt.Sprintf("n%d/web", i))
	}
	if len(all) != mostResources {
		t.Errorf("%d policies of resources", len(all))
	}
	if err := mayHold(all, "web", store.Policy{Spec: denyAll}); err != nil {
		t.Errorf("the operator's policy: %v", err)
	}
	if err := add("team/p0"); err != nil {
		t.Errorf("a change of one that is held: %v", err)
	}
}

// A namespace that changes its policies all the time is served at its rate, and a change that was refused is applied by a later call; the
// end of a policy never waits.
func TestAttackResourceChangesAllTheTime(t *testing.T) {
	t.Parallel()
	g, _ := newLeasing(t)
	refused, version := 0, uint64(0)
	for i := range 3 * changesAtOnce {
		spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{fmt.Sprintf("h%d.example.com", i)}}
		if err := g.ApplyResource(t.Context(), "team/web", spec); errors.Is(err, api.ErrLimit) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
		version = g.named("team.web").Version
	}
	if refused == 0 || version > 2*changesAtOnce {
		t.Errorf("%d changes, %d refused", version, refused)
	}
	if err := g.ApplyResource(t.Context(), "other/web", denyAll); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	if err := g.CloseResource(t.Context(), "team/web"); err != nil || g.named("team.web").Name != "" {
		t.Errorf("the end: %v", err)
	}
	for i := range 2 * mostRates {
		g.changeRates.allow(fmt.Sprint("n", i))
	}
	if n := len(g.changeRates.all); n > mostRates {
		t.Errorf("%d rates", n)
	}
}

// Resources survive a restart, with their owner, and their changes are in the audit trail with each box.
func TestResourcesAreRecorded(t *testing.T) {
	t.Parallel()
	g := newFollowers(t)
	if err := g.CloseResource(t.Context(), "team/web"); err != nil {
		t.Fatal(err)
	}
	var notes []string
	boxes := map[policy.BoxID]bool{}
	if err := g.trail.Read(t.Context(), trail.Filter{}, false, func(line []byte) error {
		var e trail.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		if e.Key == byResources {
			notes, boxes[e.Box] = append(notes, e.Note), true
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(notes) != 4 || notes[0] != "BoxgatePolicy team/web" || notes[1] != "BoxgatePolicy team/web was deleted" || !boxes["b1"] || !boxes["b2"] {
		t.Errorf("%q %v", notes, boxes)
	}
	again := openGateway(t, g.copyOf())
	if list := again.Resources(); !slices.Equal(list, []string{"team/web"}) {
		t.Errorf("after a restart: %q", list)
	}
	again.attachPod("b1", "team/agent")
	if _, err := again.SetPolicy(t.Context(), "b1", api.PolicyChange{Named: "team.web"}, nil); err == nil || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("after a restart a deleted resource may be followed: %v", err)
	}
}
