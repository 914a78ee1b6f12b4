// Package uninstall removes a gateway from its host: its kernel state, its boxes, its volatile files, and on request its
// state directory. It discovers them itself, and works even if the gateway was not stopped cleanly.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/nslock"
	"boxgate/launcher"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/store"
)

// Item is a kind of object that a gateway leaves on a host.
type Item struct {
	What  string   `json:"what"`
	Names []string `json:"names"`
}

// Plan lists the objects that an uninstallation removes and keeps.
type Plan struct {
	Remove []Item `json:"removes"`
	Keep   []Item `json:"keeps"`

	cfg      config.Config
	launcher launcher.Config
	pools    []netip.Prefix
	purge    bool
	boxes    bool // there are boxes to remove
}

// Find lists the objects that a gateway with this configuration left on the host, in the network namespace of the calling
// thread. It has no side effects. With purge, Run also removes the state directory, including keys and the files of boxes.
func Find(cfg config.Config, boxes launcher.Config, purge bool) (*Plan, error) {
	a, err := config.AddressesOf(cfg.Network)
	if err != nil {
		return nil, err
	}
	p := &Plan{cfg: cfg, launcher: boxes, pools: []netip.Prefix{a.PoolV4, a.PoolV6}, purge: purge}
	if err := p.checkNotRunning(); err != nil {
		return nil, err
	}
	if err := p.findBoxes(); err != nil {
		return nil, err
	}
	if err := p.findKernel(); err != nil {
		return nil, err
	}
	if err := p.findFiles(); err != nil {
		return nil, err
	}
	return p, nil
}

// errRunning refuses to uninstall a running gateway.
var errRunning = errors.New("a gateway is running here: stop it first (systemctl stop boxgate, or end `gateway serve`)")

func (p *Plan) checkNotRunning() error {
	if store.InUse(p.cfg.StateDir) {
		return errRunning
	}
	err := firewall.CheckNotRunning()
	if errors.Is(err, firewall.ErrRunning) {
		return fmt.Errorf("%w; it has another state directory than %s", errRunning, p.cfg.StateDir)
	}
	return err
}

func (p *Plan) add(list *[]Item, what string, names ...string) {
	if len(names) > 0 {
		*list = append(*list, Item{what, names})
	}
}

func (p *Plan) findBoxes() error {
	launched, attached, err := launcher.Leftovers(p.launcher)
	if err != nil {
		return err
	}
	own, _, err := launcher.RunEntries(p.launcher.StateDir, p.launcher.RunDir)
	if err != nil {
		return err
	}
	inUse := len(own) > 0 // otherwise boxes exist only in the state directory, as after a reboot
	p.boxes = inUse || p.purge && len(launched) > 0
	if !p.boxes {
		return nil
	}
	what := "boxes (processes, control groups, mounts and namespaces end; their files stay)"
	if p.purge {
		what = "boxes (processes, control groups, mounts, namespaces and files)"
	}
	p.add(&p.Remove, what, names(launched)...)
	p.add(&p.Remove, "attached boxes (their processes keep running, without a network)", names(attached)...)
	return nil
}

func names(ids []policy.BoxID) (list []string) {
	for _, id := range ids {
		list = append(list, string(id))
	}
	return list
}

func (p *Plan) findKernel() error {
	found, err := firewall.FindLeftovers(p.pools...)
	if err != nil {
		return err
	}
	p.add(&p.Remove, "network interfaces of boxes, with their eBPF filters", found.Links...)
	p.add(&p.Remove, "routing rules", found.Rules...)
	p.add(&p.Remove, "routes", found.Routes...)
	p.add(&p.Remove, "addresses on lo", found.Addresses...)
	p.add(&p.Remove, "nftables tables", found.Tables...)
	p.add(&p.Keep, "sysctls, which other programs may rely on", "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding",
		"net.ipv4.conf.all.src_valid_mark", "net.netfilter.nf_conntrack_acct", "net.netfilter.nf_conntrack_timestamp", "net.ipv6.conf.*.accept_ra")
	return nil
}

func (p *Plan) runDir() string { return launcher.RunDirOf(p.launcher.StateDir, p.launcher.RunDir) }

// findFiles lists the gateway's directories, and the foreign files in them.
func (p *Plan) findFiles() error {
	inRun, othersInRun, err := launcher.RunEntries(p.launcher.StateDir, p.launcher.RunDir)
	if err != nil {
		return err
	}
	if len(inRun) > 0 {
		p.add(&p.Remove, "files that do not outlive a reboot", p.runDir())
		p.add(&p.Keep, foreignFiles, othersInRun...)
	}
	if exists(p.cfg.Admin.Socket) {
		p.add(&p.Remove, "files that do not outlive a reboot", p.cfg.Admin.Socket)
	}
	images := config.ImageDir(p.cfg)
	switch {
	case !p.hasState():
	case p.purge:
		_, others, err := p.stateFiles()
		if err != nil {
			return err
		}
		p.add(&p.Remove, "the state: keys, policies, secrets, certificates and what boxes have written", p.cfg.StateDir)
		p.add(&p.Keep, foreignFiles, others...)
	default:
		p.add(&p.Keep, "the state: keys, policies, secrets, certificates and what boxes have written (--purge removes it)", p.cfg.StateDir)
	}
	if !isBelow(images, p.cfg.StateDir) && exists(images) {
		p.add(&p.Keep, "images of boxes, which other gateways may use", images)
	}
	return nil
}

// foreignFiles describes files that were not made by a gateway.
const foreignFiles = "files of something else in the gateway's directories"

// stateFiles separates the gateway's own files in its state directory from foreign ones.
func (p *Plan) stateFiles() (own, others []string, err error) {
	dirs := append(launcher.StateDirs(p.cfg.StateDir), config.ACMEDir(p.cfg), filepath.Clean(config.ImageDir(p.cfg)),
		filepath.Join(p.cfg.StateDir, config.TrailDir), filepath.Join(p.cfg.StateDir, config.HistoryDir), filepath.Join(p.cfg.StateDir, config.ObservationsFile),
		filepath.Join(p.cfg.StateDir, config.ObservationsFile+observe.DamagedSuffix))
	entries, err := os.ReadDir(p.cfg.StateDir)
	for _, e := range entries {
		path := filepath.Join(p.cfg.StateDir, e.Name())
		if store.IsStoreFile(e.Name()) || slices.Contains(dirs, path) {
			own = append(own, path)
		} else {
			others = append(others, path)
		}
	}
	return own, others, err
}

func exists(path string) bool {
	if path == "" {
		return false
	}
	_, err := os.Lstat(path)
	return err == nil
}

func isBelow(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// Run removes the objects of the plan, and similar ones made since. It continues after failures where that cannot open a
// path out of a box. It can be repeated.
func (p *Plan) Run(ctx context.Context) error {
	release, err := store.Lock(p.cfg.StateDir)
	if err != nil {
		return errRunning
	}
	defer release()
	// First the interfaces: without them no box has a way out, even if a later step fails.
	if err := firewall.RemoveLeftoverLinks(); err != nil {
		if errors.Is(err, firewall.ErrRunning) {
			return errRunning
		}
		return err
	}
	errs := []error{p.removeBoxes(ctx), firewall.RemoveLeftovers(p.pools...), p.removeSocket(), nslock.RemoveStale()}
	if err := errors.Join(errs...); err != nil || !p.purge || !p.hasState() {
		return err
	}
	return p.removeState()
}

func (p *Plan) removeBoxes(ctx context.Context) error {
	if !p.boxes {
		return nil
	}
	l, err := launcher.New(p.launcher)
	if err != nil {
		return err
	}
	return l.Uninstall(ctx, p.purge)
}

// removeSocket removes the admin socket and its default directory.
func (p *Plan) removeSocket() error {
	if p.cfg.Admin.Socket == "" {
		return nil
	}
	if info, err := os.Lstat(p.cfg.Admin.Socket); err == nil && info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("admin.socket: %s is not a socket, and stays", p.cfg.Admin.Socket)
	}
	if err := os.Remove(p.cfg.Admin.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if dir := filepath.Dir(p.cfg.Admin.Socket); dir == "/run/boxgate" {
		_ = os.Remove(dir) // fails if the directory is not empty
	}
	return nil
}

// removeState removes the gateway's own files from its state directory, unless something is still mounted there, and then the
// directory if it is empty. A directory that is a mount point itself, such as a container's volume, is only emptied.
func (p *Plan) removeState() error {
	own, others, err := p.stateFiles()
	if err != nil {
		return err
	}
	for _, path := range own {
		if err := launcher.CheckUnmounted(path); err != nil {
			return err
		}
	}
	for _, path := range own {
		if filepath.Base(path) == store.FileName {
			continue // last, because it identifies the directory if this is repeated
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(p.cfg.StateDir, store.FileName)); err != nil || len(others) > 0 {
		return err
	}
	if err := os.Remove(p.cfg.StateDir); err != nil && !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// hasState reports whether the state directory belongs to a gateway. Another directory is never removed, even if it is
// configured.
func (p *Plan) hasState() bool { return exists(filepath.Join(p.cfg.StateDir, store.FileName)) }
