package pages

import (
	"encoding/json"
	"net/http"

	"boxgate/policy/name"
)

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
