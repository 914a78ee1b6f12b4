// Package cni is the CNI plugin of the gateway (CNI specification 1.1): container runtimes call it to attach the network namespace of a
// pod. It runs after the plugin of the cluster's network (chained), or alone. A pod that is not the gateway's passes through untouched.
package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
)

// Program is the name of the plugin in the directory of CNI plugins: the gateway, or a link to it. Called by this name it is the plugin.
const Program = "boxgate-cni"

// CommandVariable is the environment variable with the call. Without it, this is not a call of a container runtime.
const CommandVariable = "CNI_COMMAND"

// Plugin is the plugin. Open returns the gateway's configuration, and a client of its admin socket, for a configuration file and a socket
// that may be empty. It does not connect.
type Plugin struct {
	Open func(configFile, admin string) (config.Config, *api.Client, error)
}

// The plugin's own error codes; the specification reserves codes below 100.
const (
	errUnavailable = 50 // of STATUS: the plugin cannot serve ADD
	errRefused     = 100
)

// callTimeout bounds one call. Runtimes bound theirs, too: kubelet's is 4 minutes.
const callTimeout = 2 * time.Minute

// Run serves one call, as environment and standard input describe it, and prints the result on standard output. An error is printed
// there in the form of the specification, and returned.
func (p *Plugin) Run() error {
	if err := boundStdin(); err != nil {
		return err
	}
	// Without a nil check, a nil *types.Error would be a non-nil error.
	if e := skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status},
		version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), "CNI plugin "+Program+": attaches pods to the gateway"); e != nil {
		return errors.Join(e, e.Print())
	}
	return nil
}

// boundStdin reads standard input up to the largest configuration, which skel reads without a bound, and replaces it. A larger one is
// passed on cut off, and so does not parse.
func boundStdin() error {
	data, err := io.ReadAll(io.LimitReader(os.Stdin, maxConfig+1))
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("cni", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "cni")
	if _, err := f.Write(data[:min(len(data), maxConfig)]); err != nil {
		return err
	}
	_, err = f.Seek(0, io.SeekStart)
	os.Stdin = f
	return err
}

// call is one call with the gateway's side opened.
type call struct {
	*request
	ctx    context.Context
	cfg    config.Config
	client *api.Client
}

// open opens the gateway's side of a call. The caller calls done.
func (p *Plugin) open(r *request) (c *call, done func(), err error) {
	cfg, client, err := p.Open(r.conf.Config, r.conf.Admin)
	if err != nil {
		return nil, nil, unavailable(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	return &call{request: r, ctx: ctx, cfg: cfg, client: client}, cancel, nil
}

// unavailable is the error of a gateway that does not answer: the runtime tries again later.
func unavailable(err error) error {
	return types.NewError(types.ErrTryAgainLater, "boxgate: the gateway cannot be reached", err.Error())
}

// refused is the error of a pod that the gateway or its configuration refuses.
func refused(format string, args ...any) error {
	return types.NewError(errRefused, "boxgate: "+fmt.Errorf(format, args...).Error(), "")
}

// ofGateway returns the error of an API call in the terms of CNI.
func ofGateway(err error) error {
	answer, ok := errors.AsType[*api.ResponseError](err)
	switch {
	case err == nil:
		return nil
	case !ok || answer.Status >= http.StatusInternalServerError:
		return unavailable(err)
	}
	text := answer.Message
	for _, problem := range answer.Problems {
		text += "; " + problem.Pointer + " " + problem.Message
	}
	return refused("the gateway refused: %s", text)
}

// box is the box of an attachment as the API describes it.
type box struct {
	ID, Status, Error, IPv4, IPv6 string
	Attached                      *api.Attached
}

// findBox returns the box of an attachment, or nil.
func (c *call) findBox(ref string) (*box, error) {
	var b box
	err := c.client.Get(c.ctx, api.BoxPath(api.CNIName(ref)), &b)
	if answer, ok := errors.AsType[*api.ResponseError](err); ok && answer.Status == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, ofGateway(err)
	}
	if b.Attached == nil || b.Attached.Kind != api.AttachCNI || b.Attached.Ref != ref {
		return nil, refused("box %s has the name of this attachment, and is another", b.ID)
	}
	return &b, nil
}

// detach removes the box of an attachment, if there is one.
func (c *call) detach(ref string) error {
	b, err := c.findBox(ref)
	if err != nil || b == nil {
		return err
	}
	err = c.client.Do(c.ctx, http.MethodPost, api.BoxPath(b.ID, "detach"), nil, nil)
	if answer, ok := errors.AsType[*api.ResponseError](err); ok && answer.Status == http.StatusNotFound {
		return nil
	}
	return ofGateway(err)
}

// stateDir returns the directory of the records.
func (c *netConf) stateDir() string {
	if c.StateDir != "" {
		return c.StateDir
	}
	return defaultStateDir
}
