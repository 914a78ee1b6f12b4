package pages

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
)

// publicURL is a public URL, as the API shows it. Token, Username and Password are set only in the response to its creation.
type publicURL struct {
	URL         string
	Port        uint16
	BearerToken bool `json:"bearer_token"`
	BasicAuth   bool `json:"basic_auth"`
	Protocol    string
	Hostnames   []string
	Pending     []struct{ Hostname, Record, Value string } `json:"pending_hostnames"`
	CreatedAt   stamp                                      `json:"created_at"`
	ExpiresAt   stamp                                      `json:"expires_at"`
	Origins     []string
	OIDC        *struct{ Emails, Domains, Groups []string }

	Token, Username, Password string
}

// Opens describes which credentials open the URL.
func (u publicURL) Opens() []string {
	var ways []string
	if u.BearerToken {
		ways = append(ways, "bearer token")
	}
	if u.BasicAuth {
		ways = append(ways, "password")
	}
	if u.OIDC != nil {
		ways = append(ways, "sign-in of "+strings.Join(slices.Concat(u.OIDC.Emails, u.OIDC.Domains, u.OIDC.Groups), ", "))
	}
	return ways
}

// Web reports whether browsers can open the URL.
func (u publicURL) Web() bool { return strings.HasPrefix(u.URL, "https://") }

func urlRoutes() []Route {
	return []Route{
		{"GET " + Prefix + "urls", allURLsPage},
		{"GET " + Prefix + "boxes/{id}/urls", boxURLsPage},
		{"POST " + Prefix + "boxes/{id}/urls", createURL},
		{"POST " + Prefix + "boxes/{id}/urls/{port}/delete", deleteURL},
	}
}

// boxURLs are the public URLs of a box.
type boxURLs struct {
	Box  boxName
	URLs []publicURL
}

// allURLs is the data of the page of the URLs of all boxes.
type allURLs struct {
	Boxes     []boxURLs // with URLs
	Count     int
	Silent    int // boxes of hosts of the fleet that do not answer
	MayChange bool
	Pager     Pager // of boxes
}

func (v *Visit) mayChangeBoxes() bool { return v.is(api.RoleAdmin, api.RoleCreator, api.RoleBox) }

// mostBoxes is the number of boxes whose URLs a page reads, with a call each.
const mostBoxes = 500

// allURLsPage lists the URLs of the boxes that the person sees.
func allURLsPage(v *Visit) (View, error) {
	var list []boxName
	if err := v.get("/v2/box", &list); err != nil {
		return View{}, err
	}
	data := allURLs{MayChange: v.mayChangeBoxes()}
	var from, to int
	from, to, data.Pager = pagedBy(v, len(list), mostBoxes)
	silent := map[string]bool{} // hosts of the fleet; each may take seconds not to answer
	data.Pager.Text = "boxes " + data.Pager.Text
	for _, b := range list[from:to] {
		if b.Status == string(api.StatusUnreachable) || silent[hostOf(b.ID)] {
			data.Silent++
			continue
		}
		var got struct{ Previews []publicURL }
		if err := v.get(api.BoxPath(b.ID, "preview"), &got); err != nil {
			if isMissing(err) {
				continue // deleted in the meantime
			}
			if isUnreachable(err) {
				silent[hostOf(b.ID)] = true
				data.Silent++
				continue
			}
			return View{}, err
		}
		if len(got.Previews) > 0 {
			data.Boxes = append(data.Boxes, boxURLs{b, got.Previews})
			data.Count += len(got.Previews)
		}
	}
	slices.SortStableFunc(data.Boxes, func(a, b boxURLs) int { return cmp.Compare(a.Box.Label(), b.Box.Label()) })
	return View{Name: "urls", Title: "Public URLs", Section: "URLs", Data: data}, nil
}

// hostOf returns the host of the fleet in the ID of a box.
func hostOf(id string) string { return id[:min(len(id), 6)] }

// urlForm is the data of the page of the URLs of a box.
type urlForm struct {
	boxURLs
	Form      Form
	MayChange bool
	Made      *publicURL // with credentials, which no other page shows
	Protocols []choice
	Lives     []choice
}

func boxURLsPage(v *Visit) (View, error) { return showURLs(v, Form{}, 0, nil) }

func showURLs(v *Visit, f Form, status int, made *publicURL) (View, error) {
	data := urlForm{Form: f, MayChange: v.mayChangeBoxes(), Made: made}
	id := v.R.PathValue("id")
	if err := v.optional(api.BoxPath(id), &data.Box); err != nil {
		return View{}, err
	}
	var got struct{ Previews []publicURL }
	if err := v.get(api.BoxPath(id, "preview"), &got); err != nil {
		return View{}, err
	}
	data.URLs = got.Previews
	texts := map[string]string{"auto": "HTTP, version detected", "http1": "HTTP/1.1", "h2c": "HTTP/2 without TLS (gRPC)", api.ProtocolTCP: "raw TCP in TLS"}
	chosen := f.Value("protocol", "auto")
	for _, p := range api.URLProtocols {
		data.Protocols = append(data.Protocols, choice{p, texts[p], p == chosen})
	}
	chosen = f.Value("expires_in", "86400")
	for _, seconds := range []int64{3600, 8 * 3600, 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600} {
		value := strconv.FormatInt(seconds, 10)
		data.Lives = append(data.Lives, choice{value, duration(seconds), value == chosen})
	}
	data.Lives = append(data.Lives, choice{"", "until it is deleted", chosen == ""})
	return View{Name: "box-urls", Title: "URLs", Section: "Boxes", Box: id, Status: status, Data: data}, nil
}

// urlFields are the fields of the form.
var urlFields = []string{"port", "bearer_token", "basic_auth", "protocol", "hostnames", "expires_in", "origins", "oidc"}

// createURL creates a URL and shows its credentials, which cannot be read again.
func createURL(v *Visit) (View, error) {
	body := map[string]any{"bearer_token": v.field("bearer_token") != "", "basic_auth": v.field("basic_auth") != "", "protocol": v.field("protocol")}
	if port, err := strconv.ParseInt(v.field("port"), 10, 64); err == nil {
		body["port"] = port
	}
	if seconds, err := strconv.ParseInt(v.field("expires_in"), 10, 64); err == nil {
		body["expires_in"] = seconds
	}
	if names := strings.Fields(v.field("hostnames")); len(names) > 0 {
		body["hostnames"] = names
	}
	var made publicURL
	if err := v.send("POST", api.BoxPath(v.R.PathValue("id"), "preview"), body, &made); err != nil {
		if isMissing(err) {
			return View{}, err
		}
		f, status, err := v.refused(err, urlFields...)
		if err != nil {
			return View{}, err
		}
		return showURLs(v, f, status, nil)
	}
	return showURLs(v, Form{}, http.StatusCreated, &made)
}

func deleteURL(v *Visit) (View, error) {
	err := v.send("DELETE", api.BoxPath(v.R.PathValue("id"), "preview", v.R.PathValue("port")), nil, nil)
	if err == nil || isMissing(err) {
		return View{Location: pathTo("boxes", v.R.PathValue("id"), "urls")}, nil
	}
	f, status, err := v.refused(err)
	if err != nil {
		return View{}, err
	}
	return showURLs(v, f, status, nil)
}
