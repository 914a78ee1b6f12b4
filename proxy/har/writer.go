package har

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/proxy/scrub"
	"boxgate/relay/h1"
)

// Writer writes an archive. One goroutine uses it.
type Writer struct {
	w       io.Writer
	capture *Capture
	escape  func([]byte) []byte
	entries int
	bytes   int64
}

// NewWriter returns a writer of the entries of a capture. escape escapes characters in JSON that a terminal would interpret.
func NewWriter(w io.Writer, c *Capture, escape func([]byte) []byte) *Writer {
	return &Writer{w: w, capture: c, escape: escape}
}

// creator is the program that wrote an archive.
type creator struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Begin writes the beginning of the archive. version is that of the gateway.
func (w *Writer) Begin(version string) error {
	by, err := json.Marshal(creator{"boxgate", version})
	if err != nil {
		return err
	}
	return w.write(slices.Concat([]byte(`{"log":{"version":"1.2","creator":`), by, []byte(`,"entries":[`)))
}

// Add writes an entry, and releases its memory. When the archive has reached its limits, it ends the capture.
func (w *Writer) Add(e *Entry) error {
	defer w.capture.taken(e)
	set, ok := w.capture.masks()
	if !ok || w.entries == MaxEntries {
		w.capture.dropped.Add(1)
		return nil
	}
	text, err := json.Marshal(e.render(set))
	if err != nil {
		return err
	}
	text = w.escape(text)
	if w.bytes+int64(len(text)) > MaxBytes {
		w.capture.dropped.Add(1)
		w.capture.End(EndBytes)
		return nil
	}
	separator := "\n"
	if w.entries > 0 {
		separator = ",\n"
	}
	w.entries++
	w.bytes += int64(len(text) + len(separator))
	if w.entries == MaxEntries {
		w.capture.End(EndEntries)
	}
	return w.write(append([]byte(separator), text...))
}

// Ending describes the end of an archive.
type Ending struct {
	Ended   Reason `json:"ended"`
	Dropped uint64 `json:"dropped,omitempty"` // exchanges that are missing
}

// End writes the end of the archive. The capture must have ended.
func (w *Writer) End() error {
	text, err := json.Marshal(Ending{w.capture.Reason(), w.capture.Dropped()})
	if err != nil {
		return err
	}
	return w.write(slices.Concat([]byte("\n],\"_boxgate\":"), text, []byte("}}\n")))
}

func (w *Writer) write(b []byte) error {
	_, err := w.w.Write(b)
	return err
}

// The types below are those of HAR 1.2. Names with an underscore are boxgate's own.

type pair struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type entryView struct {
	Started  string       `json:"startedDateTime"`
	Time     float64      `json:"time"`
	Request  requestView  `json:"request"`
	Response responseView `json:"response"`
	Cache    struct{}     `json:"cache"`
	Timings  timingsView  `json:"timings"`
	Server   string       `json:"serverIPAddress,omitempty"`
	Type     string       `json:"_resourceType,omitempty"`
	Boxgate  boxgateView  `json:"_boxgate"`
}

type requestView struct {
	Method      string    `json:"method"`
	URL         string    `json:"url"`
	Version     string    `json:"httpVersion"`
	Cookies     []pair    `json:"cookies"`
	Headers     []pair    `json:"headers"`
	Query       []pair    `json:"queryString"`
	Post        *postView `json:"postData,omitempty"`
	HeadersSize int       `json:"headersSize"`
	BodySize    int64     `json:"bodySize"`
}

type postView struct {
	Type     string `json:"mimeType"`
	Text     string `json:"text"`
	Encoding string `json:"_encoding,omitempty"` // base64
	Comment  string `json:"comment,omitempty"`
}

type responseView struct {
	Status      int         `json:"status"`
	Text        string      `json:"statusText"`
	Version     string      `json:"httpVersion"`
	Cookies     []pair      `json:"cookies"`
	Headers     []pair      `json:"headers"`
	Content     contentView `json:"content"`
	Redirect    string      `json:"redirectURL"`
	HeadersSize int         `json:"headersSize"`
	BodySize    int64       `json:"bodySize"`
	Trailers    []pair      `json:"_trailers,omitempty"`
	Error       string      `json:"_error,omitempty"`
}

type contentView struct {
	Size     int64   `json:"size"`
	Type     string  `json:"mimeType"`
	Text     *string `json:"text,omitempty"`
	Encoding string  `json:"encoding,omitempty"`
	Comment  string  `json:"comment,omitempty"`
}

type timingsView struct {
	Blocked float64 `json:"blocked"`
	DNS     float64 `json:"dns"`
	Connect float64 `json:"connect"`
	Send    float64 `json:"send"`
	Wait    float64 `json:"wait"`
	Receive float64 `json:"receive"`
	SSL     float64 `json:"ssl"`
}

// boxgateView is the decision about the exchange.
type boxgateView struct {
	Verdict    policy.Verdict `json:"verdict"`
	Action     string         `json:"action,omitempty"`
	Reason     string         `json:"reason"`
	Rule       string         `json:"rule,omitempty"`
	Version    uint64         `json:"policy_version,omitempty"`
	Headers    []string       `json:"headers,omitempty"` // changed by the gateway, as in the log
	Error      string         `json:"error,omitempty"`
	Incomplete bool           `json:"incomplete,omitempty"` // parts are missing, as the box's memory in the gateway was short
}

// rendering is the work of one entry.
type rendering struct {
	*Entry
	set *scrub.Set
	redaction
}

// render returns an entry with all secrets masked. Its exchange has ended.
func (e *Entry) render(set *scrub.Set) entryView {
	r := rendering{e, set, redaction{e.capture.options.Credentials, e.tokens}}
	o := &e.outcome
	v := entryView{
		Started: e.began.UTC().Format("2006-01-02T15:04:05.000Z07:00"), Request: r.requestView(), Response: r.responseView(), Timings: e.timings(),
		Boxgate: boxgateView{
			Verdict: o.Verdict, Action: string(o.Action), Reason: string(o.Reason), Rule: r.mask(o.Rule), Version: o.Version, Headers: o.Headers,
			Error: r.mask(o.Error), Incomplete: e.short,
		},
	}
	v.Time = v.Timings.Blocked + v.Timings.Wait + v.Timings.Receive
	if o.Verdict == policy.Allow && o.Addr.IsValid() {
		v.Server = o.Addr.String()
	}
	if e.request.Upgrade {
		v.Type = "websocket"
	}
	return v
}

func (r *rendering) mask(text string) string { return r.set.MaskString(text) }

// timings splits the time of the exchange at the moments when the request was sent and the response began.
func (e *Entry) timings() timingsView {
	millis := func(d time.Duration) float64 { return float64(max(d, 0).Microseconds()) / 1000 }
	end := e.began.Add(e.took)
	sent, answered := e.sent, e.answered
	if answered.IsZero() || answered.After(end) {
		answered = end
	}
	if sent.IsZero() || sent.After(answered) {
		sent = answered
	}
	return timingsView{Blocked: millis(sent.Sub(e.began)), DNS: -1, Connect: -1, SSL: -1, Wait: millis(answered.Sub(sent)), Receive: millis(end.Sub(answered))}
}

func (r *rendering) requestView() requestView {
	q := &r.request
	if q.Version == "" { // its head was refused
		*q = refused(&r.outcome)
	}
	path, query := r.path(q.Path)
	for i := range query {
		query[i].Name, query[i].Value = r.mask(query[i].Name), r.mask(query[i].Value)
	}
	if !strings.HasPrefix(path, "/") { // OPTIONS *
		path = "/" + path
	}
	v := requestView{
		Method: r.mask(q.Method), URL: r.mask(q.Scheme + "://" + q.Host + path), Version: q.Version, Cookies: []pair{}, Query: query, HeadersSize: q.Size,
		BodySize: r.outcome.BytesOut,
	}
	if q.Upgrade {
		v.BodySize = 0
	}
	v.Headers = r.headers(slices.DeleteFunc(slices.Clone(q.Fields), r.replaced))
	for _, name := range r.sets {
		v.Headers = append(v.Headers, pair{name, SetByGateway})
	}
	for _, name := range r.removes {
		v.Headers = append(v.Headers, pair{name, RemovedByGateway})
	}
	for _, c := range (&http.Request{Header: http.Header{"Cookie": values(q.Fields, "Cookie")}}).Cookies() {
		v.Cookies = append(v.Cookies, r.cookie(c))
	}
	if kind := value(q.Fields, "Content-Type"); kind != "" || len(r.upload.data) > 0 {
		text, encoding, comment := r.body(&r.upload, q.Fields)
		v.Post = &postView{Type: r.mask(kind), Text: text, Encoding: encoding, Comment: comment}
	}
	return v
}

// refused returns the known part of a request whose head was refused.
func refused(o *audit.Event) Request {
	r := Request{Version: "HTTP/1.1", Method: o.Method, Scheme: "https", Host: o.Name, Path: o.Path, Size: -1}
	switch o.Port {
	case 443:
	case 80:
		r.Scheme = "http"
	default:
		r.Host = net.JoinHostPort(o.Name, strconv.Itoa(int(o.Port)))
	}
	return r
}

// replaced reports whether a field of the box is replaced by one that the gateway sets, or removed.
func (r *rendering) replaced(f Field) bool {
	is := func(name string) bool { return h1.IsVariant(f.Name, name) }
	return slices.ContainsFunc(r.sets, is) || slices.ContainsFunc(r.removes, is)
}

func (r *rendering) headers(fields []Field) []pair {
	out := make([]pair, 0, len(fields))
	for _, f := range fields {
		out = append(out, pair{r.mask(f.Name), r.mask(r.field(f.Name, f.Value))})
	}
	return out
}

func (r *rendering) cookie(c *http.Cookie) pair {
	if !r.credentials && !slices.Contains(r.shown, c.Value) {
		return pair{r.mask(c.Name), Redacted}
	}
	return pair{r.mask(c.Name), r.mask(c.Value)}
}

func (r *rendering) responseView() responseView {
	v := responseView{
		Status: r.status, Text: http.StatusText(r.status), Version: r.version, Cookies: []pair{}, Headers: r.headers(r.fields), HeadersSize: -1,
		BodySize: r.outcome.BytesIn, Redirect: r.mask(r.reference(value(r.fields, "Location"))), Trailers: r.headers(r.trailers),
	}
	if v.Version == "" {
		v.Version = r.request.Version
	}
	if r.status == 0 {
		v.Error, v.BodySize = "no response", -1
	}
	if r.request.Upgrade {
		v.BodySize = 0
	}
	for _, c := range (&http.Response{Header: http.Header{"Set-Cookie": values(r.fields, "Set-Cookie")}}).Cookies() {
		v.Cookies = append(v.Cookies, r.cookie(c))
	}
	if r.own {
		v.BodySize = int64(len(r.download.data))
	}
	v.Content = contentView{Size: max(v.BodySize, 0), Type: r.mask(value(r.fields, "Content-Type"))}
	if text, encoding, comment := r.body(&r.download, r.fields); r.download.kept && (text != "" || comment == "") {
		v.Content.Text, v.Content.Encoding, v.Content.Comment = &text, encoding, comment
	} else {
		v.Content.Comment = comment
	}
	return v
}

// values returns the values of all fields with a name.
func values(fields []Field, name string) (all []string) {
	for i := range fields {
		if strings.EqualFold(fields[i].Name, name) {
			all = append(all, fields[i].Value)
		}
	}
	return all
}
