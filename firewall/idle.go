package firewall

import (
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"boxgate/firewall/flow"
	"boxgate/firewall/nft"
)

// The kernel's table of connections belongs to the whole host, and reading it takes time in proportion to its size. So
// connections of a box are only looked up if it may have any: the kernel notes the box's interface when it forwards a
// connection ([nft.Table.Noted]). The note is erased only when there are none, and counts as lost until a later look has
// shown that there really were none.

// idle is what is known of boxes that have no connections that the kernel forwards.
type idle struct {
	owners  map[flow.Owner]bool // of connections from before the rules that note them; nil: not known
	tables  int                 // how often the rules were written anew, and the notes lost
	pending map[*box]bool       // to be looked at
	timer   *time.Timer         // of the next step; nil while nothing is pending
	wait    time.Duration       // before each step; [inFlight], but in tests
}

// findOwners notes whose connections there are, once the rules are in force that note all later ones.
func (f *Firewall) findOwners() {
	var err error
	if f.idle.owners, err = f.flows.Owners(); err != nil {
		f.idle.owners = nil
		f.cfg.Log.Warn("firewall: the connection table cannot be read; it is read again with each change of a policy", zap.Error(err))
	}
}

// cutLookups ends lookups of names that lead to where an earlier run listened, once the rules in force lead all later ones to where this
// one does.
func (f *Firewall) cutLookups() {
	if err := f.flows.CutLookups([]netip.Prefix{f.cfg.PoolV4, f.cfg.PoolV6}, f.cfg.DNSPort); err != nil {
		f.cfg.Log.Warn("firewall: the connection table cannot be read; for some minutes, lookups of names from ports that boxes use again may fail", zap.Error(err))
	}
}

// noted reports whether all connections that the box may have were noted.
func (i *idle) noted(e nft.Entry) bool {
	return i.owners != nil && !hasAny(i.owners, e)
}

// suspect notes that the box may have connections that were not noted.
func (i *idle) suspect(e nft.Entry) {
	for _, a := range e.Sources {
		if i.owners != nil {
			i.owners[flow.Owner{Mark: e.Mark, Addr: a}] = true
		}
	}
}

// isIdle reports that the kernel forwards no connection of the box. mu is held.
func (f *Firewall) isIdle(b *box) bool {
	if !b.noted {
		return false
	}
	carries, err := f.table.Noted(b.Link)
	if err != nil {
		f.cfg.Log.Warn("firewall: the notes of forwarded connections cannot be read; the connection table is", zap.Error(err))
	}
	return err == nil && !carries
}

// inFlight is longer than a packet needs from the rule that notes its connection to where the connection enters the
// kernel's table, which is all in one go.
const inFlight = time.Second

// verifyIdle finds out soon whether a box that seems to have no connections really has none.
func (f *Firewall) verifyIdle(b *box) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	if f.idle.pending == nil {
		f.idle.pending = map[*box]bool{}
	}
	f.idle.pending[b] = true
	if f.idle.timer == nil {
		f.idle.timer = time.AfterFunc(f.idle.wait, f.eraseNotes)
	}
}

// eraseNotes erases the notes of boxes that seem to have no connections. Until they have been looked at, they count as
// boxes that may have some.
func (f *Firewall) eraseNotes() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	var boxes []*box
	var links []string
	for b := range f.idle.pending {
		if f.boxes.byID[b.ID] == b {
			b.noted = false
			boxes, links = append(boxes, b), append(links, b.Link)
		}
	}
	f.idle.pending, f.idle.timer = nil, nil
	if err := f.table.EraseNotes(links); err != nil || len(links) == 0 {
		return
	}
	tables := f.idle.tables
	f.idle.timer = time.AfterFunc(f.idle.wait, func() { f.lookAt(boxes, tables) })
}

// lookAt looks for connections of boxes whose notes have been erased. Connections that began before that are in the
// kernel's table by now, and all others are noted.
func (f *Firewall) lookAt(boxes []*box, tables int) {
	owners, err := f.flows.Owners()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.idle.timer = nil
	if len(f.idle.pending) > 0 {
		f.idle.timer = time.AfterFunc(f.idle.wait, f.eraseNotes)
	}
	if err != nil || tables != f.idle.tables {
		return
	}
	for _, b := range boxes {
		b.noted = !hasAny(owners, b.Entry)
	}
}

// hasAny reports whether the entry's box is among the owners.
func hasAny(owners map[flow.Owner]bool, e nft.Entry) bool {
	return slices.ContainsFunc(e.Sources, func(a netip.Addr) bool { return owners[flow.Owner{Mark: e.Mark, Addr: a}] })
}

// stop ends what is pending. mu of the firewall is held.
func (i *idle) stop() {
	if i.timer != nil {
		i.timer.Stop()
	}
}
