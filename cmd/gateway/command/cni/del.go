package cni

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"boxgate/api"
)

// ours reports whether a call concerns an attachment of the gateway: as the pod asks for, as the result of ADD shows, or as a record of an
// ADD that has not ended well. CHECK and DEL of other pods do not need the gateway.
func (r *request) ours() bool {
	if selected, _ := r.selected(); selected || r.attached() {
		return true
	}
	_, err := os.Lstat(filepath.Join(r.conf.stateDir(), api.CNIName(r.ref())))
	return err == nil
}

// del serves DEL. It succeeds for a pod that is not attached, and fails while the gateway, which must remove the box, does not answer.
func (p *Plugin) del(args *skel.CmdArgs) (err error) {
	r, err := readRequest(args, false)
	if err != nil || !r.ours() {
		return err
	}
	c, done, err := p.open(r)
	if err != nil {
		return err
	}
	defer done()
	rec, err := openRecord(r.conf.stateDir(), r.ref())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	if err := c.detach(r.ref()); err != nil {
		return err
	}
	if err := addStandIn(r.netns, r.ifname, rec.Removed); err != nil {
		return err
	}
	return rec.remove()
}

// check serves CHECK.
func (p *Plugin) check(args *skel.CmdArgs) error {
	r, err := readRequest(args, false)
	if err != nil || !r.ours() {
		return err
	}
	c, done, err := p.open(r)
	if err != nil {
		return err
	}
	defer done()
	b, err := c.findBox(r.ref())
	switch {
	case err != nil:
		return err
	case b == nil:
		return refused("the pod is not attached")
	case b.Status == string(api.StatusGone) || b.Status == string(api.StatusError):
		return refused("box %s is in state %s: %s", b.ID, b.Status, b.Error)
	}
	if b.Attached.Stack == api.StackGuest {
		return nil // the addresses are in the sandbox's own stack
	}
	pod, err := openPod(r.netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS: "+err.Error(), "")
	}
	defer pod.Close()
	if err := pod.checkOnlyWayOut(r.prev); err != nil {
		return refused("the pod has another network than it was given: %w", err)
	}
	return nil
}

// gc serves GC: it removes the attachments of the network that are not among the valid ones. Attachments of other networks stay.
func (p *Plugin) gc(args *skel.CmdArgs) error {
	r, err := readRequest(args, false)
	if err != nil {
		return err
	}
	c, done, err := p.open(r)
	if err != nil {
		return err
	}
	defer done()
	valid := map[string]bool{}
	for _, a := range r.conf.ValidAttachments {
		valid[api.CNIRef(r.conf.Name, a.ContainerID, a.IfName)] = true
	}
	var boxes []box
	if err := c.client.Get(c.ctx, api.BoxesPath(""), &boxes); err != nil {
		return ofGateway(err)
	}
	refs, err := recordsOf(r.conf.stateDir(), r.conf.Name)
	if err != nil {
		return err
	}
	for _, b := range boxes {
		if b.Attached != nil && b.Attached.Kind == api.AttachCNI && strings.HasPrefix(b.Attached.Ref, r.conf.Name+"/") {
			refs = append(refs, b.Attached.Ref)
		}
	}
	var errs []error
	for _, ref := range refs {
		if !valid[ref] {
			errs = append(errs, c.collect(ref))
		}
	}
	return errors.Join(errs...)
}

// collect removes an attachment that the runtime no longer lists (GC).
func (c *call) collect(ref string) (err error) {
	rec, err := openRecord(c.conf.stateDir(), ref)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	if err := c.detach(ref); err != nil {
		return err
	}
	return rec.remove()
}

// status serves STATUS.
func (p *Plugin) status(args *skel.CmdArgs) error {
	conf, err := readConf(args.StdinData)
	if err != nil {
		return err
	}
	c, done, err := p.open(&request{conf: conf})
	if err == nil {
		defer done()
		err = c.client.Do(c.ctx, http.MethodGet, "/readyz", nil, nil)
	}
	if err != nil {
		return types.NewError(errUnavailable, "boxgate: the gateway cannot attach pods", err.Error())
	}
	return nil
}
