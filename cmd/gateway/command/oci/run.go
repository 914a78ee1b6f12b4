package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
	"boxgate/host/sandboxns"
	"boxgate/launcher/oci"
)

// Gateway is the running gateway. Its fields are read when a container is created.
type Gateway struct {
	Client   *api.Client
	Resolver netip.Addr         // its DNS server
	Roots    []byte             // additional roots for containers, in PEM
	Sockets  []string           // its control sockets and files
	Rules    config.AttachRules // bounds of annotations
	Policy   string             // of containers without annotations, in the form of the command line; may be empty
	Headers  string             // likewise
}

// Run runs a command of the runtime. open opens the gateway, for the commands that create and delete a container. Other commands replace
// this process by the runtime, and Run returns only their errors. status is the exit status of the runtime.
func Run(ctx context.Context, l Line, open func() (Gateway, error)) (status int, err error) {
	status, err = run(ctx, l, open)
	if err != nil {
		l.logError(err)
	}
	return status, err
}

func run(ctx context.Context, l Line, open func() (Gateway, error)) (status int, err error) {
	if l.Runtime, err = find(l.Runtime); err != nil {
		return 0, err
	}
	switch l.Command {
	case "create", "run", "delete", "start":
	case "restore":
		return 0, errors.New("gateway oci cannot restore a container from a checkpoint: its network is gone")
	default:
		return 0, l.become()
	}
	c, err := l.parseCall()
	if err != nil {
		return 0, err
	}
	if l.Command == "start" {
		if err := l.checkStart(ctx, c); err != nil {
			return 0, err
		}
		return 0, l.become()
	}
	g, err := open()
	if err != nil && l.Command != "delete" {
		return 0, err
	}
	if l.Command == "delete" {
		return l.delete(ctx, g, c)
	}
	return l.create(ctx, g, c)
}

// usualDirs are searched for a runtime after PATH, which may be empty for a program of an engine.
var usualDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// find returns the path of a runtime.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range usualDirs {
		if err != nil && !strings.Contains(name, "/") {
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
	}
	if err != nil {
		return "", fmt.Errorf("the runtime %q: %w", name, err)
	}
	if same, err := isSame(path, "/proc/self/exe"); err != nil || same {
		return "", fmt.Errorf("the runtime %s is the gateway itself: name another one", path)
	}
	return filepath.Abs(path)
}

// become replaces this process by the runtime.
func (l Line) become() error {
	args := append([]string{l.Runtime}, l.Globals...)
	if l.Command != "" {
		args = append(append(args, l.Command), l.Args...)
	}
	return fmt.Errorf("%s: %w", l.Runtime, unix.Exec(l.Runtime, args, os.Environ()))
}

// call calls the runtime. Signals that end this process are passed on to it.
func (l Line) call(ctx context.Context, args []string) (status int, err error) {
	cmd := exec.CommandContext(ctx, l.Runtime, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// state returns the state of a container. Its errors are not written to the engine's log.
func (l Line) state(ctx context.Context, id string) (pid int, err error) {
	out, err := exec.CommandContext(ctx, l.Runtime, slices.Concat(l.Globals, []string{"--log", os.DevNull, "state", id})...).Output()
	var state struct{ Pid int }
	if err == nil {
		err = json.Unmarshal(out, &state)
	}
	if err != nil {
		return 0, fmt.Errorf("the state of the container: %w", err)
	}
	return state.Pid, nil
}

// knows reports whether the runtime has a container.
func (l Line) knows(ctx context.Context, id string) bool {
	_, err := l.state(ctx, id)
	return err == nil
}

// checkStart returns why a created container must not start.
func (l Line) checkStart(ctx context.Context, c call) error {
	r, err := load(place(l.Runtime, l.Root, c.ID))
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("the container %s was not created by gateway oci, or its state in %s is gone", c.ID, stateDir)
	}
	pid, err := l.state(ctx, c.ID)
	if err != nil {
		return err
	}
	netns := fmt.Sprintf("/proc/%d/ns/net", pid)
	if now, err := identity(netns); err != nil || now != r.NetNS {
		return fmt.Errorf("the container %s is not in the network namespace that the gateway has attached", c.ID)
	}
	return checkLinks(netns)
}

// create attaches a container and has the runtime create it, and with run also start it.
func (l Line) create(ctx context.Context, g Gateway, c call) (status int, err error) {
	b, err := readBundle(c.Bundle)
	if err != nil {
		return 0, err
	}
	b.absolute()
	if err := b.refuse(g.Sockets...); err != nil {
		return 0, fmt.Errorf("the container cannot be behind the gateway: %w", err)
	}
	r := &record{ID: c.ID, Runtime: l.Runtime, Root: l.Root, dir: place(l.Runtime, l.Root, c.ID)}
	unlock, err := lock(ctx, r.dir)
	if err != nil {
		return 0, err
	}
	locked := true
	release := func() {
		if locked {
			unlock()
		}
		locked = false
	}
	defer release()
	if err := l.forget(ctx, g, r); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil || status != 0 {
			err = errors.Join(err, l.undo(ctx, g, r))
		}
	}()
	args, held, err := l.prepare(ctx, g, c, b, r)
	if err != nil {
		return 0, err
	}
	defer held.close()
	if l.Command == "create" {
		return l.call(ctx, args)
	}
	release() // the container's end, or its deletion by another command, may be far
	status, err = l.call(ctx, args)
	if err == nil && !c.Detach {
		err = l.undo(ctx, g, r)
	}
	return status, err
}

// forget detaches an earlier container of the same ID. One that exists is an error.
func (l Line) forget(ctx context.Context, g Gateway, r *record) error {
	if l.knows(ctx, r.ID) {
		return fmt.Errorf("a container with the ID %s exists already", r.ID)
	}
	old, err := load(r.dir)
	if err != nil || old == nil {
		return errors.Join(err, r.remove())
	}
	return old.release(ctx, g)
}

// undo detaches a container that the runtime does not have.
func (l Line) undo(ctx context.Context, g Gateway, r *record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if l.knows(ctx, r.ID) {
		return nil
	}
	return r.release(ctx, g)
}

// prepare attaches a container, and returns the arguments of the runtime to create it in its network namespace, and the process
// that holds this namespace until then.
func (l Line) prepare(ctx context.Context, g Gateway, c call, b *bundle, r *record) (args []string, holding *holder, err error) {
	hooks := b.takeDockerHooks()
	if l.Command == "run" && b.hasNetworkHooks() {
		return nil, nil, errors.New("the container has hooks that could add an interface, and run starts it without a check: use create and start")
	}
	settings, search := b.resolvConf()
	held, err := newHolder(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			held.close()
		}
	}()
	if err := l.attach(ctx, g, b, r, held, search); err != nil {
		return nil, nil, err
	}
	var ca []byte
	if err := g.Client.Get(ctx, api.BoxPath(r.Box, "ca"), &ca); err != nil {
		return nil, nil, fmt.Errorf("the CA of the container's box: %w", err)
	}
	if r.Files, err = b.install(r.dir, ca, g.Roots); err != nil {
		return nil, nil, err
	}
	if err := r.save(); err != nil {
		return nil, nil, err
	}
	conf := "nameserver " + g.Resolver.String() + "\n"
	if len(search) > 0 {
		conf += "search " + strings.Join(search, " ") + "\n"
	}
	for _, line := range settings {
		conf += line + "\n"
	}
	file := filepath.Join(r.dir, "resolv.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		return nil, nil, err
	}
	b.mountOver("/etc/resolv.conf", file)
	if err := b.write(r.dir); err != nil {
		return nil, nil, err
	}
	if err := divert(ctx, c.ID, b.dir, b.spec.Version, hooks); err != nil {
		return nil, nil, err
	}
	return l.withBundle(c, r.dir), held, nil
}

// criContainer is the annotation of containerd for the kind of a container of a pod.
const criContainer = "io.kubernetes.cri.container-type"

// attach attaches the network namespace of held for a container, or, if the container joins that of another one with a box, makes it a
// member of that box. It saves the record.
func (l Line) attach(ctx context.Context, g Gateway, b *bundle, r *record, held *holder, search []string) error {
	want, err := readAnnotations(b.spec.Annotations)
	if err != nil {
		return err
	}
	owner, err := r.joined(ctx, g, b, held)
	if err != nil {
		return err
	}
	if err := b.refuseShared(ctx, owner, held); err != nil {
		return fmt.Errorf("the container cannot be behind the gateway: %w", err)
	}
	if owner != nil {
		return r.join(owner, want)
	}
	if b.spec.Annotations[criContainer] == "container" {
		return errors.New("the sandbox of the container's pod was not started by gateway oci: they need the same runtime class")
	}
	r.NetNS, err = identity(held.path())
	if err != nil {
		return err
	}
	stack := api.StackHost
	if oci.ByName(l.Runtime).OwnNetwork {
		stack = api.StackGuest
	}
	namespace, err := namespaceOf(b.spec.Annotations)
	if err != nil {
		return err
	}
	body, err := want.body(g.Rules.For(namespace), g.Policy, g.Headers, stack)
	if err != nil {
		return err
	}
	body["pid"] = held.cmd.Process.Pid
	body["oci"] = map[string]any{"id": r.ID, "runtime": oci.ByName(l.Runtime).Name, "search": append([]string{}, search...)}
	var answer struct{ ID string }
	if err := g.Client.Do(ctx, "POST", "/v2/box/attach", body, &answer); err != nil {
		return fmt.Errorf("the gateway does not attach the container: %w", err)
	}
	r.Box, r.Asked = answer.ID, want
	b.joins(held.path())
	return r.save()
}

// joined returns the container whose network namespace the container is to join, with a box that is attached, or nil. The runtime gets
// the namespace that was judged, whatever the engine's path refers to later.
func (r *record) joined(ctx context.Context, g Gateway, b *bundle, held *holder) (*record, error) {
	path := b.network()
	if path == "" {
		return nil, nil
	}
	ns, err := sandboxns.OpenNetNS(path)
	if err != nil {
		return nil, fmt.Errorf("the network namespace of the container: %w", err)
	}
	path = held.keep(ns)
	if r.NetNS, err = identity(path); err != nil {
		return nil, err
	}
	owners, err := ownersOf(r.NetNS)
	if err != nil {
		return nil, err
	}
	var ended error
	for _, owner := range owners {
		if owner.process(ctx) == 0 {
			continue // it has ended: its namespace's number may be another's
		}
		// While a box is attached the gateway holds its namespace, whose number no other has.
		var box struct{ Status api.Status }
		switch err := g.Client.Get(ctx, api.BoxPath(owner.Box), &box); {
		case err != nil:
			ended = fmt.Errorf("the box of %s, whose network the container joins: %w", owner.ID, err)
		case box.Status != api.StatusIdle && box.Status != api.StatusRunning && box.Status != api.StatusPaused:
			ended = fmt.Errorf("the box of %s, whose network the container joins, is %s", owner.ID, box.Status)
		default:
			b.joins(path)
			return owner, nil
		}
	}
	return nil, ended
}

// join makes a container a member of the box of another one, whose network namespace it joins.
func (r *record) join(owner *record, want asked) error {
	if want != (asked{}) && want != owner.Asked {
		return fmt.Errorf("the container joins the network of %s, and has other annotations of boxgate.dev: remove them", owner.ID)
	}
	r.Box, r.Member = owner.Box, true
	return r.save()
}

// releaseTimeout bounds how long a deletion waits for the gateway.
const releaseTimeout = 30 * time.Second

// release detaches the container and removes its files. A gateway that does not answer deletes the box itself, when it finds its network
// namespace without processes.
func (r *record) release(ctx context.Context, g Gateway) error {
	if r.Box != "" && !r.Member && g.Client != nil {
		ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
		defer cancel()
		_ = g.Client.Do(ctx, "POST", api.BoxPath(r.Box, "detach"), nil, nil)
	}
	return r.remove()
}

// delete has the runtime delete a container, then detaches it. A container that the runtime does not know is detached, too.
func (l Line) delete(ctx context.Context, g Gateway, c call) (status int, err error) {
	r := place(l.Runtime, l.Root, c.ID)
	unlock, err := lock(ctx, r)
	if err != nil {
		return 0, err
	}
	defer unlock()
	status, err = l.call(ctx, slices.Concat(l.Globals, []string{l.Command}, l.Args))
	if err != nil {
		return status, err
	}
	old, err := load(r)
	if err != nil || old == nil {
		return status, err
	}
	return status, l.undo(ctx, g, old)
}

// logError appends an error to the log of the runtime, where engines look for their messages.
func (l Line) logError(err error) {
	if l.Log == "" {
		return
	}
	f, ferr := os.OpenFile(l.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if ferr != nil {
		return
	}
	defer f.Close()
	now := time.Now().Format(time.RFC3339)
	if !l.LogJSON {
		fmt.Fprintf(f, "time=%q level=error msg=%q\n", now, "gateway: "+err.Error())
		return
	}
	line, merr := json.Marshal(map[string]string{"level": "error", "msg": "gateway: " + err.Error(), "time": now})
	if merr == nil {
		_, _ = f.Write(append(line, '\n'))
	}
}
