package cni

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/firewall/link"
	"boxgate/firewall/network"
	"boxgate/policy"
)

// add serves ADD.
func (p *Plugin) add(args *skel.CmdArgs) error {
	r, err := readRequest(args, true)
	if err != nil {
		return err
	}
	ours, err := r.selected()
	if err != nil {
		return refused("%w", err)
	}
	if !ours && r.prev != nil {
		if own, _ := ns.CheckNetNS(r.netns); own {
			return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the network namespace of the host", "")
		}
		return types.PrintResult(r.prev, r.conf.CNIVersion)
	}
	// The only plugin of a network: all its pods are the gateway's.
	if err := r.pod.checkAnnotations(); err != nil {
		return refused("%w", err)
	}
	if r.ifname != link.Inside {
		return refused("the interface of a pod is %s, not %q", link.Inside, r.ifname)
	}
	c, done, err := p.open(r)
	if err != nil {
		return err
	}
	defer done()
	body := c.body()
	if err := c.addChoices(body); err != nil {
		return refused("namespace %q: %w", r.pod.namespace, err)
	}
	result, err := c.attach(body)
	if err != nil {
		return err
	}
	return types.PrintResult(result, r.conf.CNIVersion)
}

// addChoices adds the choices of the pod's annotations to a request, within the operator's bounds.
func (c *call) addChoices(body map[string]any) error {
	rule, asked := c.cfg.Attach.CNI.For(c.pod.namespace), c.pod.annotations
	for key, value := range asked {
		if value == "" {
			return fmt.Errorf("annotation %s is empty", key)
		}
	}
	chosen, err := rule.Policy(asked[policyAnnotation])
	if err != nil {
		return err
	}
	if chosen, err = c.pod.named(chosen); err != nil {
		return err
	}
	if chosen != "" {
		if body["network_policy"], err = cli.PolicyArgument(chosen, cli.BoxPolicyHelp, strings.NewReader("")); err != nil {
			return err
		}
	}
	file, err := rule.HeaderFile(asked[headersAnnotation])
	if err != nil {
		return err
	}
	if file != "" {
		if body["attach_headers"], err = cli.RulesArgument("@"+file, strings.NewReader("")); err != nil {
			return err
		}
	}
	if stack := asked[stackAnnotation]; stack != "" {
		body["stack"] = stack
	}
	if asked[labelsAnnotation] == "" {
		return nil
	}
	labels := strings.Split(asked[labelsAnnotation], ",")
	for _, label := range labels {
		if err := rule.CheckLabel(label); err != nil {
			return err
		}
	}
	body["labels"] = labels
	return nil
}

// named returns the policy that an annotation or a rule chooses for the pod. A resource is always one of the pod's own namespace.
func (p pod) named(chosen string) (string, error) {
	name, ok := strings.CutPrefix(chosen, config.ResourcePolicy)
	switch {
	case !ok:
		return chosen, nil
	case p.namespace == "" || p.name == "":
		return "", fmt.Errorf("the policy %.200q is a resource of Kubernetes, and the runtime names no pod", chosen)
	}
	return cli.NamedPrefix + api.ResourceName(p.namespace+"/"+name), nil
}

// attach attaches the pod. After an error the pod has no network, or its earlier one if the gateway could not be reached.
func (c *call) attach(body map[string]any) (_ *types100.Result, err error) {
	pod, err := openPod(c.netns)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, "CNI_NETNS: "+err.Error(), "")
	}
	defer pod.Close()
	rec, err := openRecord(c.conf.stateDir(), c.ref())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	switch b, err := c.findBox(c.ref()); { // also: does the gateway answer?
	case err != nil:
		return nil, err
	case b != nil:
		return nil, refused("the pod is attached already, as box %s", b.ID)
	}
	if err := c.removeEarlier(pod, rec); err != nil {
		return nil, errors.Join(err, c.abandon(rec))
	}
	var made box
	if err := c.client.Do(c.ctx, http.MethodPost, "/v2/box/attach", body, &made); err != nil {
		return nil, errors.Join(ofGateway(err), c.abandon(rec))
	}
	result, err := c.result(pod, &made)
	if err != nil {
		return nil, errors.Join(err, c.abandon(rec))
	}
	return result, nil
}

// removeEarlier removes the interfaces of the plugins before this one, and so the pod's other ways out. The record is written first.
func (c *call) removeEarlier(pod *podNet, rec *record) error {
	rec.Ref = c.ref()
	if c.prev == nil {
		return rec.write()
	}
	links, err := pod.earlier(c.request)
	if err != nil {
		return refused("the pod cannot be attached: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Name != c.ifname {
			continue
		}
		if rec.Removed, err = pod.addressesOf(l); err != nil {
			return err
		}
	}
	if err := rec.write(); err != nil {
		return err
	}
	for _, l := range links {
		if err := pod.LinkDel(l); err != nil {
			return fmt.Errorf("removing interface %s of the pod: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// abandon undoes a failed ADD. If the gateway does not answer, the record stays for DEL.
func (c *call) abandon(rec *record) error {
	if err := c.detach(rec.Ref); err != nil {
		return err
	}
	return errors.Join(addStandIn(c.netns, c.ifname, rec.Removed), rec.remove())
}

// body is the request to attach the pod, without its choices.
func (c *call) body() map[string]any {
	attachment := map[string]any{"network": c.conf.Name, "container_id": c.container, "interface": c.ifname}
	if c.pod.name != "" {
		attachment["pod"] = c.pod.namespace + "/" + c.pod.name
	}
	if search := c.conf.RuntimeConfig.DNS.Searches; len(search) > 0 {
		attachment["search"] = search
	}
	return map[string]any{"netns": c.netns, "cni": attachment}
}

// result describes the pod's network. Of the plugins before this one, it has the interfaces on the host that still exist.
func (c *call) result(pod *podNet, b *box) (*types100.Result, error) {
	inside, err := pod.LinkByName(link.Inside)
	if err != nil {
		return nil, fmt.Errorf("interface %s of the pod: %w", link.Inside, err)
	}
	pools, err := config.AddressesOf(c.cfg.Network)
	if err != nil {
		return nil, err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: types.DNS{
		Nameservers: []string{pools.GatewayV4.String(), pools.GatewayV6.String()}, Search: c.conf.RuntimeConfig.DNS.Searches,
	}}
	if c.prev != nil {
		for _, i := range c.prev.Interfaces {
			if i == nil || i.Sandbox != "" {
				continue
			}
			if _, err := netlink.LinkByName(i.Name); err == nil {
				result.Interfaces = append(result.Interfaces, i)
			}
		}
	}
	mtu := inside.Attrs().MTU
	result.Interfaces = append(result.Interfaces, &types100.Interface{Name: network.LinkName(policy.BoxID(b.ID)), Mtu: mtu},
		&types100.Interface{Name: link.Inside, Mac: inside.Attrs().HardwareAddr.String(), Mtu: mtu, Sandbox: c.netns})
	at := len(result.Interfaces) - 1
	for _, family := range []struct {
		address string
		gateway netip.Addr
	}{{b.IPv4, pools.GatewayV4}, {b.IPv6, pools.GatewayV6}} {
		ip, err := netip.ParseAddr(family.address)
		if err != nil {
			return nil, fmt.Errorf("the gateway's answer has no address: %w", err)
		}
		gateway := net.IP(family.gateway.AsSlice())
		result.IPs = append(result.IPs, &types100.IPConfig{Interface: &at, Address: *network.HostNet(ip), Gateway: gateway})
		result.Routes = append(result.Routes, &types.Route{Dst: *network.IPNet(netip.PrefixFrom(family.gateway, 0).Masked()), GW: gateway})
	}
	return result, nil
}
