package firewall

import (
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"boxgate/firewall/flow"
	"boxgate/firewall/nft"
)

// The kernel's connection table belongs to the whole host, and reading it takes time in proportion to its size. So
// connections of a box are only looked up if it may have any: the kernel notes the box's interface when it forwards a
// connection ([nft.Table.HasNote]). The note is erased only when the box has no connections, and the box counts as not noted
// until a second look has confirmed that.

// idle tracks which boxes have no forwarded connections.
type idle struct {
	owners  map[flow.Owner]bool // owners of connections older than the rules that write notes; nil: unknown
	tables  int                 // how often the table was replaced, which loses the notes
	pending map[*box]bool       // boxes to be looked at
	timer   *time.Timer         // for the next step; nil while no box is pending
	wait    time.Duration       // before each step; [inFlight], except in tests
}

// findOwners records the owners of existing connections, after installing the rules that note all later ones.
func (f *Firewall) findOwners() {
	var err error
	if f.idle.owners, err = f.flows.Owners(); err != nil {
		f.idle.owners = nil
		f.cfg.Log.Warn("firewall: the connection table cannot be read; it is read again with each change of a policy", zap.Error(err))
	}
}

// cutLookups cuts DNS lookups that an earlier version translated to another port than this run's, after installing the rules
// of this run. This version translates none.
func (f *Firewall) cutLookups() {
	if err := f.flows.CutLookups([]netip.Prefix{f.cfg.PoolV4, f.cfg.PoolV6}, f.cfg.DNSPort); err != nil {
		f.cfg.Log.Warn("firewall: the connection table cannot be read; for some minutes, lookups of names from ports that boxes use again may fail", zap.Error(err))
	}
}

// allNoted reports whether all connections that the box may have were noted.
func (i *idle) allNoted(e nft.Entry) bool {
	return i.owners != nil && !hasAny(i.owners, e)
}

// markUnnoted records that the box may have connections that were not noted.
func (i *idle) markUnnoted(e nft.Entry) {
	for _, a := range e.Sources {
		if i.owners != nil {
			i.owners[flow.Owner{Mark: e.Mark, Addr: a}] = true
		}
	}
}

// isIdle reports whether it is certain that the kernel forwards no connection of the box. The caller holds mu.
func (f *Firewall) isIdle(b *box) bool {
	if !b.noted {
		return false
	}
	carries, err := f.table.HasNote(b.Link)
	if err != nil {
		f.cfg.Log.Warn("firewall: the notes of forwarded connections cannot be read; the connection table is", zap.Error(err))
	}
	return err == nil && !carries
}

// inFlight is longer than a packet takes from the rule that notes its connection to the connection's insertion into the
// kernel's table; the kernel does both in one pass.
const inFlight = time.Second

// verifyIdle schedules a check of a box that seems to have no connections.
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

// eraseNotes erases the notes of boxes that seem to have no connections. Until checkConnections has checked them, they count as boxes
// that may have some.
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
	f.idle.timer = time.AfterFunc(f.idle.wait, func() { f.checkConnections(boxes, tables) })
}

// checkConnections looks for connections of boxes whose notes have been erased. Connections that began before that are in the
// kernel's table; all others are noted.
func (f *Firewall) checkConnections(boxes []*box, tables int) {
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

// stop stops the timer. The caller holds the firewall's mu.
func (i *idle) stop() {
	if i.timer != nil {
		i.timer.Stop()
	}
}
