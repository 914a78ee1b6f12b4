package report

import (
	"cmp"
	"slices"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	maxNames = 16  // of headers or secrets in one row
	maxPaths = 16  // of one use
	maxShort = 768 // shorter than 256 bytes, a path counts as part of its row
)

// Builder makes a report. Call [Builder.Decision] for all decisions, then [Builder.Entry] for all entries of the audit trail, in
// any order, then [Builder.Report]. Create it with [New]. Not safe for concurrent use.
type Builder struct {
	query   Query
	boxes   map[policy.BoxID]*box
	rows    int
	traffic int // rows of traffic
	read    uint64
	omitted uint64
	changes *changes
}

// box collects the part of a report about one box.
type box struct {
	Box
	flows    map[flowKey]*row
	uses     map[useKey]*Use
	versions map[uint64]*Version
	rows     int    // of traffic
	carried  amount // of connections that carry requests which are decided one by one
	bodies   amount // of these requests
}

// amount is a number of bytes from and to a box.
type amount struct{ out, in int64 }

func (a *amount) add(e *audit.Event) {
	a.out += e.BytesOut
	a.in += e.BytesIn
}

// most returns the larger numbers of two.
func (a amount) most(b amount) amount { return amount{max(a.out, b.out), max(a.in, b.in)} }

// carries reports whether an event is about an allowed connection whose requests have events of their own. Its bytes include theirs.
func carries(e *audit.Event) bool {
	return e.Stage == policy.StageConn && e.Verdict == policy.Allow && (e.Action == audit.ActionIntercept || e.Action == audit.ActionForward)
}

// row is a row of flows that is not finished.
type row struct {
	Flow
	carried, bodies amount
	requests        bool // some events were requests
}

func (r *row) add(e *audit.Event, n uint64) {
	switch {
	case carries(e):
		r.carried.add(e)
		r.Connections += decisions(e)
	case e.Stage == policy.StageHTTP:
		r.bodies.add(e)
		r.Count += n
		r.requests = true
	default:
		r.BytesIn += e.BytesIn
		r.BytesOut += e.BytesOut
		r.Count += n
	}
	seen(&r.First, &r.Last, e.Time)
	add(&r.Headers, e.Headers, maxNames)
	add(&r.Secrets, used(e), maxNames)
}

// flow returns the finished row.
func (r *row) flow() Flow {
	f, carried := r.Flow, r.carried.most(r.bodies)
	f.BytesOut += carried.out
	f.BytesIn += carried.in
	return f
}

// table is the table of a report that a flow is in.
type table uint8

const (
	egress table = iota
	refused
	visits
)

// flowKey identifies the rows of flows.
type flowKey struct {
	in       table
	host     string
	port     uint16
	protocol policy.Protocol
	lookup   bool
	action   audit.Action
	reason   string
	rule     string
	version  uint64
}

// useKey identifies the rows of uses.
type useKey struct {
	secret, host, rule, method string
	port                       uint16
	version                    uint64
}

// New returns a builder for a query.
func New(q Query) *Builder {
	return &Builder{query: q, boxes: map[policy.BoxID]*box{}, changes: newChanges()}
}

// selects reports whether a decision is in the window and about the boxes and secrets of the query.
func (b *Builder) selects(e *audit.Event) bool {
	q := &b.query
	switch {
	case e.Box == "" || e.SelfTest || e.Time.Before(q.Since) || !e.Time.Before(q.Until):
		return false
	case q.Box != "":
		if e.Box != q.Box {
			return false
		}
	case q.Name != "" && e.BoxName != q.Name && string(e.Box) != q.Name && !b.changes.named[e.Box]:
		return false
	}
	return q.Secrets == nil || slices.ContainsFunc(used(e), func(s string) bool { return slices.Contains(q.Secrets, s) })
}

// used returns the secrets of a decision.
func used(e *audit.Event) []string {
	if len(e.Secrets) == 0 && e.Secret != "" { // recorded by an earlier version
		return []string{e.Secret}
	}
	return e.Secrets
}

// Decision adds a decision. Decisions that the query does not select are ignored.
func (b *Builder) Decision(e *audit.Event) {
	if !b.selects(e) {
		return
	}
	b.read++
	x := b.box(e.Box)
	if x == nil {
		b.omitted++
		return
	}
	if e.BoxName != "" {
		x.Name = e.BoxName
	}
	if e.Reason == name.ReasonGateway { // a question to the gateway, which it answers itself
		return
	}
	n := decisions(e)
	if carries(e) {
		n = 0 // its requests count
	}
	x.count(e, n)
	b.flow(x, e, n)
	b.version(x, e, n)
	for _, s := range used(e) {
		if b.query.Secrets == nil || slices.Contains(b.query.Secrets, s) {
			b.use(x, s, e, n)
		}
	}
}

// box returns the part of a box, or nil if there are too many boxes.
func (b *Builder) box(id policy.BoxID) *box {
	x := b.boxes[id]
	if x == nil && b.row() {
		x = &box{Box: Box{ID: id}, flows: map[flowKey]*row{}, uses: map[useKey]*Use{}, versions: map[uint64]*Version{}}
		b.boxes[id] = x
	}
	return x
}

// row reports whether the report has room for another row, and takes it.
func (b *Builder) row() bool { return b.take(1) }

// take is row for a row that counts as n rows, because of long texts.
func (b *Builder) take(n int) bool {
	if b.rows+n > MaxRows {
		return false
	}
	b.rows += n
	return true
}

// limit returns how many rows the traffic of one box may have in the report. A box that makes up destinations displaces neither the traffic
// of other boxes nor the changes.
func (b *Builder) limit() int {
	if b.query.Box != "" || b.query.Name != "" {
		return MaxRows / 2
	}
	return MaxRows / 8
}

// trafficRow is take for rows of the traffic of a box. A refusal or look-up does not take the last half of the box's rows, which are left to
// traffic that leaves the box. All boxes together leave half of the report to changes.
func (b *Builder) trafficRow(x *box, n int, leaves bool) bool {
	most := b.limit()
	if !leaves {
		most /= 2
	}
	if x.rows+n > most || b.traffic+n > MaxRows/2 || !b.take(n) {
		return false
	}
	x.rows += n
	b.traffic += n
	return true
}

// weight returns the number of rows that texts count as: one for each KiB.
func weight(texts ...string) int {
	n := 0
	for _, s := range texts {
		n += len(s)
	}
	return n >> 10
}

// decisions returns the number of decisions in an event. The end of traffic is none: its beginning was one, unless a policy cut it.
func decisions(e *audit.Event) uint64 {
	if e.Phase == audit.PhaseOngoing || e.Phase == audit.PhaseEnd && e.Verdict == policy.Allow {
		return 0
	}
	return max(e.Count, 1)
}

// count adds an event to the totals of a box.
func (x *box) count(e *audit.Event, n uint64) {
	switch {
	case carries(e):
		x.carried.add(e)
	case e.Stage == policy.StageHTTP:
		x.bodies.add(e)
	default:
		x.BytesOut += e.BytesOut
		x.BytesIn += e.BytesIn
	}
	switch {
	case e.Verdict != policy.Allow && e.Reason.IsFailure():
		x.Failed += n
	case e.Verdict != policy.Allow:
		x.Denied += n
	case e.Stage == policy.StageDNS:
		x.Lookups += n
	default:
		x.Allowed += n
	}
}

// flow adds an event to its row.
func (b *Builder) flow(x *box, e *audit.Event, n uint64) {
	key := flowKey{
		host: hostOf(e), port: e.Port, protocol: e.Protocol, lookup: e.Stage == policy.StageDNS, action: e.Action, reason: string(e.Reason),
		rule: e.Rule, version: e.Version,
	}
	switch {
	case e.Verdict != policy.Allow:
		key.in = refused
	case e.Stage == policy.StageURL:
		key.in = visits
	}
	if key.lookup { // port and protocol belong to the DNS server
		key.port, key.protocol = 0, ""
	}
	f := x.flows[key]
	if f == nil {
		if !b.trafficRow(x, 1, key.in != refused && !key.lookup) {
			b.omitted++
			return
		}
		f = &row{Flow: Flow{
			Host: key.host, Port: key.port, Protocol: key.protocol, Lookup: key.lookup, Action: string(e.Action), Reason: e.Reason,
			Failure: e.Verdict != policy.Allow && e.Reason.IsFailure(), Rule: e.Rule, Version: e.Version, Via: e.Via, First: e.Time, Last: e.Time,
		}}
		x.flows[key] = f
	}
	f.add(e, n)
}

// hostOf returns the name of a destination, else its address.
func hostOf(e *audit.Event) string {
	if e.Name == "" && e.Addr.IsValid() {
		return e.Addr.String()
	}
	return e.Name
}

// version adds an event to the version of the policy that decided it.
func (b *Builder) version(x *box, e *audit.Event, n uint64) {
	if e.Version == 0 {
		return
	}
	v := x.versions[e.Version]
	if v == nil {
		if !b.trafficRow(x, 1, true) {
			b.omitted++
			return
		}
		v = &Version{Version: e.Version, First: e.Time, Last: e.Time}
		x.versions[e.Version] = v
	}
	v.Decisions += n
	seen(&v.First, &v.Last, e.Time)
}

// use adds an event to the uses of a secret.
func (b *Builder) use(x *box, secret string, e *audit.Event, n uint64) {
	key := useKey{secret: secret, host: hostOf(e), rule: e.Rule, port: e.Port, version: e.Version}
	if b.query.Secrets != nil {
		key.method, key.version = e.Method, 0
	}
	u := x.uses[key]
	if u == nil {
		if !b.trafficRow(x, 1, true) {
			b.omitted++
			return
		}
		u = &Use{
			Secret: secret, Box: e.Box, Host: key.host, Port: e.Port, Protocol: e.Protocol, Method: key.method, Rule: e.Rule,
			Login: e.Login, Via: e.Via, Version: e.Version, First: e.Time, Last: e.Time,
		}
		x.uses[key] = u
	}
	u.Count += n
	u.BytesIn += e.BytesIn
	u.BytesOut += e.BytesOut
	seen(&u.First, &u.Last, e.Time)
	add(&u.Headers, e.Headers, maxNames)
	if e.Path != "" && b.query.Secrets != nil && len(u.Paths) < maxPaths && !slices.Contains(u.Paths, e.Path) && b.trafficRow(x, (len(e.Path)+maxShort)>>10, true) {
		add(&u.Paths, []string{e.Path}, maxPaths)
	}
}

// seen extends the time between first and last.
func seen(first, last *time.Time, at time.Time) {
	if at.Before(*first) {
		*first = at
	}
	if at.After(*last) {
		*last = at
	}
}

// add adds texts that a list does not have, up to a length.
func add(to *[]string, from []string, most int) {
	for _, s := range from {
		if len(*to) < most && !slices.Contains(*to, s) {
			*to = append(*to, s)
		}
	}
}

// finish returns the part about the box, sorted.
func (x *box) finish() Box {
	total := x.carried.most(x.bodies)
	x.BytesOut += total.out
	x.BytesIn += total.in
	x.joinCarriers()
	connected := map[string]bool{} // names with connections, by verdict
	for key := range x.flows {
		if !key.lookup {
			connected[key.host+"/"+string('0'+rune(key.in))] = true
		}
	}
	for key, f := range x.flows {
		switch {
		case key.lookup && connected[key.host+"/"+string('0'+rune(key.in))]: // the connection tells more
		case key.in == refused:
			x.Refused = append(x.Refused, f.flow())
		case key.in == visits:
			x.Visits = append(x.Visits, f.flow())
		default:
			x.Egress = append(x.Egress, f.flow())
		}
	}
	byBytes := func(a, b Flow) int { return cmp.Or(cmp.Compare(b.BytesOut, a.BytesOut), compareFlows(a, b)) }
	slices.SortFunc(x.Egress, byBytes)
	slices.SortFunc(x.Visits, byBytes)
	slices.SortFunc(x.Refused, compareFlows)
	x.Secrets = x.sortedUses()
	for _, v := range x.versions {
		x.Policies = append(x.Policies, *v)
	}
	slices.SortFunc(x.Policies, func(a, b Version) int { return cmp.Compare(a.Version, b.Version) })
	return x.Box
}

// joinCarriers adds rows of connections only to the row of the most requests of the same destination and version, whose decisions may
// have another rule.
func (x *box) joinCarriers() {
	type place struct {
		host    string
		port    uint16
		version uint64
	}
	requests := map[place]*row{}
	at := func(key flowKey) place { return place{key.host, key.port, key.version} }
	for key, r := range x.flows {
		if best := requests[at(key)]; r.requests && key.in == egress && (best == nil || r.Count > best.Count) {
			requests[at(key)] = r
		}
	}
	for key, r := range x.flows {
		best := requests[at(key)]
		if r.requests || r.Connections == 0 || key.in != egress || best == nil || best == r {
			continue
		}
		best.carried.out += r.carried.out
		best.carried.in += r.carried.in
		best.Connections += r.Connections
		delete(x.flows, key)
	}
}

func compareFlows(a, b Flow) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Version, b.Version),
		cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Action, b.Action))
}

// sortedUses returns the uses of secrets by secret, the most frequent first.
func (x *box) sortedUses() (list []Use) {
	for _, u := range x.uses {
		u.BoxName = x.Name
		slices.Sort(u.Paths)
		list = append(list, *u)
	}
	slices.SortFunc(list, func(a, b Use) int {
		return cmp.Or(cmp.Compare(a.Secret, b.Secret), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Version, b.Version), cmp.Compare(a.Method, b.Method))
	})
	return list
}
