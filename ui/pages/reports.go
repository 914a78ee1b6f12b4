package pages

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/audit/auditpage"
	"boxgate/audit/report"
	"boxgate/quota"
)

// reports makes reports for browsers. It bounds the reports in memory as the API does: a slow browser keeps its report until it
// has received it.
type reports struct {
	operators chan struct{} // of admin keys
	others    chan struct{} // of other keys
	turns     quota.Turns   // of other keys: one report each
}

// maxReports is the number of reports in memory, for admin keys and for other keys each.
const maxReports = 2

func newReports() *reports {
	return &reports{operators: make(chan struct{}, maxReports), others: make(chan struct{}, maxReports)}
}

func reportRoutes() []Route {
	r := newReports()
	return []Route{
		{"GET " + Prefix + "report", reportPage},
		{"GET " + Prefix + "report/{format}", r.file},
	}
}

// reportForm is the data of the page that asks for a report.
type reportForm struct {
	Form    Form
	Boxes   []boxName // that exist, if the role may list them
	Formats []choice
}

// formats are the forms of a report.
var formats = []choice{{Value: "html", Text: "HTML page, complete in itself"}, {Value: "csv", Text: "CSV"}, {Value: "json", Text: "JSON"}}

// reportPage shows the form. The form leads to the page of its format.
func reportPage(v *Visit) (View, error) {
	if format := v.asked("format"); slices.ContainsFunc(formats, func(c choice) bool { return c.Value == format }) {
		q := v.R.URL.Query()
		q.Del("format")
		return View{Location: pathTo("report", format) + "?" + q.Encode()}, nil
	}
	return showReportForm(v, Form{}, 0)
}

func showReportForm(v *Visit, f Form, status int) (View, error) {
	if !v.is(api.RoleAdmin, api.RoleAuditor) {
		return View{}, &api.ResponseError{Status: http.StatusForbidden, Message: "Reports are for keys and people with the role auditor or admin."}
	}
	data := reportForm{Form: f, Formats: formats}
	if err := v.optional("/v2/box", &data.Boxes); err != nil {
		return View{}, err
	}
	return View{Name: "report", Title: "Report for auditors", Section: "Report", Status: status, Data: data}, nil
}

// admit waits until the person may have a report made. leave must be called after it was sent.
func (s *reports) admit(ctx context.Context, caller api.Caller) (leave func(), err error) {
	places, end := s.operators, func() {}
	if h := caller.Holder(); !h.Operator {
		if end, err = s.turns.Enter(ctx, h.ID); err != nil {
			return nil, err
		}
		places = s.others
	}
	select {
	case places <- struct{}{}:
		return func() { <-places; end() }, nil
	case <-ctx.Done():
		end()
		return nil, context.Cause(ctx)
	}
}

// file sends a report. Its page forbids scripts and everything else by its own policy, and is sandboxed, so that it cannot act as
// a page of the dashboard.
func (s *reports) file(v *Visit) (View, error) {
	format := v.R.PathValue("format")
	if !slices.ContainsFunc(formats, func(c choice) bool { return c.Value == format }) {
		return View{}, &api.ResponseError{Status: http.StatusNotFound, Message: "There is no report of this format."}
	}
	leave, err := s.admit(v.R.Context(), v.Caller)
	if err != nil {
		return View{}, err
	}
	defer leave()
	query := url.Values{}
	for _, name := range []string{"box", "since", "until"} {
		if text := v.asked(name); text != "" {
			query.Set(name, text)
		}
	}
	var made report.Report
	if err := v.get("/v2/audit/report?"+query.Encode(), &made); err != nil {
		f, status, err := v.refused(err)
		if err != nil {
			return View{}, err
		}
		f.Values = map[string]string{"box": v.asked("box"), "since": v.asked("since"), "until": v.asked("until")}
		return showReportForm(v, f, status)
	}
	send(v.W, format, made)
	return View{Written: true}, nil
}

// send writes a report. A report that cannot be sent whole ends with the connection.
func send(w http.ResponseWriter, format string, made report.Report) {
	name := "boxgate-report-" + made.Until.UTC().Format("20060102T150405Z") + "." + format
	write, kind, disposition := auditpage.WriteHTML, "text/html; charset=utf-8", "inline"
	switch format {
	case "csv":
		write, kind, disposition = auditpage.WriteCSV, "text/csv; charset=utf-8", "attachment"
	case "json":
		write, kind, disposition = writeJSON, "application/json", "attachment"
	default:
		w.Header().Set("Content-Security-Policy", auditpage.Policy+"; frame-ancestors 'none'; sandbox allow-downloads")
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", disposition+`; filename="`+name+`"`)
	out := bufio.NewWriterSize(rest.SteadyWriter(w), 32<<10)
	if err := write(out, made); err != nil || out.Flush() != nil {
		panic(http.ErrAbortHandler)
	}
}

// writeJSON writes a report as indented JSON.
func writeJSON(w io.Writer, r report.Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
