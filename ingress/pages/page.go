// Package pages renders the gateway's own answers at a public URL: a page for browsers, problem details (RFC 9457) for
// programs. Both describe the problem and the remedy. They contain no data from visitors or applications, except for the
// path to return to after a sign-in, which is escaped.
package pages

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"boxgate/policy/name"
)

// style is the only style of the pages. The colors have a contrast of at least 7 to 1 to their background.
const style = `:root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--soft:#4a4f57;--line:#767c85;--act:#0b4fb3;--on:#fff;--bad:#8f1d14}
@media(prefers-color-scheme:dark){:root{--bg:#16181b;--fg:#f1f2f4;--soft:#c0c5cc;--line:#8a9099;--act:#a9c8ff;--on:#0c1524;--bad:#ffb4aa}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:1.0625rem/1.55 system-ui,sans-serif}
main{max-width:34rem;margin:12vh auto;padding:0 1.5rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .75rem}
p{margin:0 0 1rem}.soft{color:var(--soft)}.bad{color:var(--bad);font-weight:600}
label{display:block;margin:1rem 0 .25rem;font-weight:600}
fieldset{border:0;margin:0;padding:0}legend{padding:0;margin-top:1.5rem;color:var(--soft)}
input{width:100%;padding:.6rem .7rem;font:inherit;color:inherit;background:transparent;border:1px solid var(--line);border-radius:.4rem}
button,.act{display:inline-block;margin-top:1.25rem;padding:.6rem 1.2rem;font:inherit;font-weight:600;color:var(--on);background:var(--act);border:0;border-radius:.4rem;text-decoration:none;cursor:pointer}
:focus-visible{outline:3px solid var(--act);outline-offset:2px}
footer{margin-top:2.5rem;color:var(--soft);font-size:.9375rem}`

// policyOfContent allows a page only its own style, and form submission to its own origin.
var policyOfContent = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

// reloadAfter is the number of seconds until a page reloads itself.
const reloadAfter = "5"

// Page returns the fields and the body of the answer to a browser.
func (n Notice) Page() (fields [][2]string, body []byte) {
	return [][2]string{
		{"Content-Type", "text/html; charset=utf-8"}, {"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"},
		{"Content-Security-Policy", policyOfContent}, {"X-Frame-Options", "DENY"},
		// not no-referrer, with which the form's Origin would be "null"
		{"Referrer-Policy", "same-origin"}, {"X-Robots-Tag", "noindex"},
		// The application has the same origin, so with same-origin it could open the page and read what is typed into it.
		{"Cross-Origin-Opener-Policy", "noopener-allow-popups"},
	}, []byte(n.html())
}

func (n Notice) html() string {
	var b strings.Builder
	if n.Form != nil {
		n.Form.write(&b)
	}
	if n.Detail != "" && (n.Form == nil || !n.Form.Failed) {
		b.WriteString("<p>" + html.EscapeString(n.Detail) + "</p>\n")
	}
	if r := n.remedy(); r != "" {
		b.WriteString("<p class=\"soft\">" + html.EscapeString(r) + "</p>\n")
	}
	b.WriteString("<footer>" + n.footer() + "</footer>\n")
	return document(n.title(), n.Status == http.StatusServiceUnavailable, b.String())
}

// document returns a whole page with a title, the same heading, and HTML content. Reloading works without a script.
func document(title string, reloads bool, content string) string {
	refresh := ""
	if reloads {
		refresh = "<meta http-equiv=\"refresh\" content=\"" + reloadAfter + "\">\n"
	}
	title = html.EscapeString(title)
	return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" +
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n" + refresh +
		"<title>" + title + "</title>\n<style>" + style + "</style>\n</head>\n<body>\n<main>\n<h1>" + title + "</h1>\n" +
		content + "</main>\n</body>\n</html>\n"
}

// footer contains the status and the reason, which help the operator find the decision in the log.
func (n Notice) footer() string {
	text := "Answered by boxgate, not by the application"
	if n.Status != http.StatusOK {
		text += ": " + strconv.Itoa(n.Status) + ", " + string(n.Reason)
	}
	return html.EscapeString(text) + "."
}

// Paths that the gateway serves itself at every public URL.
const (
	Reserved    = "/.boxgate/" // prefix of all; not forwarded to applications
	SignInPath  = Reserved + "sign-in"
	SignOutPath = Reserved + "sign-out"
	StartPath   = Reserved + "start"  // sends the visitor to the identity provider
	ReturnPath  = Reserved + "return" // takes the visitor back from it
)

// Fields of the form.
const (
	FieldToken    = "token"
	FieldUser     = "username"
	FieldPassword = "password"
	FieldNext     = "next"
)

// write writes the form and its introduction.
func (f *Form) write(b *strings.Builder) {
	next := html.EscapeString(f.Next)
	if f.Failed {
		b.WriteString("<p class=\"bad\" role=\"alert\">That credential is wrong.</p>\n")
	}
	if f.Provider {
		// A link, because form-action does not allow another origin.
		b.WriteString("<p><a class=\"act\" href=\"" + StartPath + "?" + FieldNext + "=" + html.EscapeString(url.QueryEscape(f.Next)) + "\">Sign in with your account</a></p>\n")
	}
	if f.Bearer {
		openForm(b, next)
		field(b, FieldToken, "Access token", "password", "current-password")
		closeForm(b)
	}
	if f.Basic {
		openForm(b, next)
		if f.Bearer {
			b.WriteString("<fieldset>\n<legend>Or with a user name and password</legend>\n")
		}
		field(b, FieldUser, "User name", "text", "username")
		field(b, FieldPassword, "Password", "password", "current-password")
		if f.Bearer {
			b.WriteString("</fieldset>\n")
		}
		closeForm(b)
	}
}

func openForm(b *strings.Builder, next string) {
	b.WriteString("<form method=\"post\" action=\"" + SignInPath + "\">\n<input type=\"hidden\" name=\"" + FieldNext + "\" value=\"" + next + "\">\n")
}

func closeForm(b *strings.Builder) {
	b.WriteString("<button type=\"submit\">Sign in</button>\n</form>\n")
}

func field(b *strings.Builder, name, label, kind, autocomplete string) {
	b.WriteString("<label for=\"" + name + "\">" + label + "</label>\n<input id=\"" + name + "\" name=\"" + name + "\" type=\"" + kind +
		"\" autocomplete=\"" + autocomplete + "\" autocapitalize=\"none\" spellcheck=\"false\" required>\n")
}

// SignOutPage returns the page on which a visitor confirms to sign out.
func SignOutPage() (fields [][2]string, body []byte) {
	fields, _ = Notice{Status: http.StatusOK}.Page()
	return fields, []byte(document("Sign out", false, "<p>Connections that are open under this sign-in are closed.</p>\n"+
		"<form method=\"post\" action=\""+SignOutPath+"\">\n<button type=\"submit\">Sign out</button>\n</form>\n"))
}

// Notice is an answer of the gateway.
type Notice struct {
	Status int
	Reason name.Reason
	Detail string // what is wrong
	Form   *Form  // sign-in form; may be nil
}

// Form describes a sign-in form.
type Form struct {
	Bearer, Basic bool   // the credentials that the URL accepts
	Provider      bool   // the URL admits accounts of the identity provider
	Next          string // the path that the visitor wanted
	Failed        bool   // the submitted credential was wrong
}

// problem is the body of an answer to a program.
type problem struct {
	Title  string      `json:"title"`
	Status int         `json:"status"`
	Detail string      `json:"detail"`
	Remedy string      `json:"remedy,omitempty"`
	Reason name.Reason `json:"reason"`
}

// Problem returns the fields and the body of the answer to a program.
func (n Notice) Problem() (fields [][2]string, body []byte) {
	body, err := json.Marshal(problem{Title: http.StatusText(n.Status), Status: n.Status, Detail: n.Detail, Remedy: n.remedy(), Reason: n.Reason})
	if err != nil {
		body = []byte("{}")
	}
	return [][2]string{{"Content-Type", "application/problem+json"}, {"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}}, body
}

// title returns the heading of the page.
func (n Notice) title() string {
	switch {
	case n.Form != nil:
		return "Sign in"
	case n.Status == http.StatusOK:
		return "Signed out"
	}
	if t, ok := titles[n.Status]; ok {
		return t
	}
	return "This request was not served"
}

var titles = map[int]string{
	http.StatusUnauthorized:       "This page needs a credential",
	http.StatusForbidden:          "This request was refused",
	http.StatusNotFound:           "Nothing is published here",
	http.StatusMisdirectedRequest: "Nothing is published here",
	http.StatusRequestTimeout:     "The request took too long",
	http.StatusTooManyRequests:    "Too many requests",
	http.StatusBadGateway:         "The application does not answer",
	http.StatusServiceUnavailable: "Just a moment",
	http.StatusGatewayTimeout:     "The application takes too long",
}

// remedy returns advice on who can help.
func (n Notice) remedy() string {
	switch n.Status {
	case http.StatusUnauthorized:
		return "Whoever gave you this address can give you its credential, or a new one if it was replaced or has expired."
	case http.StatusForbidden:
		return "Open the address directly. If it still does not work, whoever gave it to you can tell who may use it."
	case http.StatusNotFound, http.StatusMisdirectedRequest:
		return "Check the address. It may have been deleted or have expired: whoever gave it to you can publish it again."
	case http.StatusTooManyRequests:
		return "Wait a little and try again. If you did not send many requests, others on your network did."
	case http.StatusBadGateway:
		return "Whoever runs the application can start it, listening on the port of this address."
	case http.StatusServiceUnavailable:
		return "This page tries again by itself every few seconds. There is nothing you need to do."
	case http.StatusGatewayTimeout:
		return "Try again. If it stays slow, whoever runs the application can find out why."
	case http.StatusOK:
		return ""
	}
	return "Try again. If that does not help, the program that sent the request has to be mended."
}
