package pages

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/quota"
)

// apiKey is an API key, as the API shows it. Key is set only in the response that made or replaced it.
type apiKey struct {
	ID, Name string
	Role     api.Role
	BoxID    string `json:"box_id"`
	Created  stamp  `json:"created_at"`
	Expires  stamp  `json:"expires_at"`
	LastUsed stamp  `json:"last_used"`
	Quotas   map[string]int64
	Use      map[string]struct{ Used, Limit int64 }

	Key string
}

// Path returns the path of the key's page.
func (k apiKey) Path() string { return pathTo("keys", k.ID) }

// TrailPath returns the path of the calls with the key in the audit trail.
func (k apiKey) TrailPath() string {
	return Prefix + "trail?" + url.Values{"key": {k.ID}, "since": {""}}.Encode()
}

// Operator reports whether it is the key of the operator, which cannot be deleted.
func (k apiKey) Operator() bool { return k.ID == api.OperatorKey }

// holding is the use of a quota by a key.
type holding struct {
	Kind        string
	Used, Limit string // Limit: "" for none
	Full        bool   // nine tenths or more are used
	Own         string // the limit set for this key; "" for the configured one
}

// Holdings returns the use of each quota.
func (k apiKey) Holdings() (list []holding) {
	for _, kind := range quota.Kinds() {
		use, own := k.Use[kind.String()], k.Quotas[kind.String()]
		h := holding{Kind: kind.String(), Used: kind.Amount(use.Used), Full: use.Limit > 0 && use.Used*10 >= use.Limit*9}
		if use.Limit > 0 {
			h.Limit = kind.Amount(use.Limit)
		}
		if own > 0 {
			h.Own = strconv.FormatInt(own, 10)
		}
		list = append(list, h)
	}
	return list
}

// Held returns the quotas of which the key holds something.
func (k apiKey) Held() []holding {
	return slices.DeleteFunc(k.Holdings(), func(h holding) bool { return k.Use[h.Kind].Used == 0 })
}

func keyRoutes() []Route {
	return []Route{
		{"GET " + Prefix + "keys", keysPage},
		{"POST " + Prefix + "keys", createKey},
		{"GET " + Prefix + "keys/{key}", keyPage},
		{"POST " + Prefix + "keys/{key}/quotas", changeQuotas},
		{"POST " + Prefix + "keys/{key}/replace", replaceKey},
		{"POST " + Prefix + "keys/{key}/delete", deleteKey},
	}
}

// keyList is the data of the page of keys.
type keyList struct {
	Keys  []apiKey
	Pager Pager
	Form  Form
	Made  *apiKey // with its value, which no other page shows
	Roles []choice
	Lives []choice
}

const keysPath = "/v2/api-keys"

func readKeys(v *Visit) ([]apiKey, error) {
	var got struct {
		Keys []apiKey `json:"api_keys"`
	}
	return got.Keys, v.Client.Get(v.R.Context(), keysPath, &got)
}

func keysPage(v *Visit) (View, error) { return showKeys(v, Form{}, 0, nil) }

// roleTexts describe the roles to the reader of the form.
var roleTexts = map[api.Role]string{
	api.RoleAdmin: "everything", api.RoleCreator: "makes boxes, and manages those", api.RoleReader: "sees boxes, rules and traffic", api.RoleBox: "manages one box",
	api.RoleAuditor: "reads records and reports", api.RoleApprover: "answers requests for access",
}

func showKeys(v *Visit, f Form, status int, made *apiKey) (View, error) {
	data := keyList{Form: f, Made: made}
	var err error
	if data.Keys, err = readKeys(v); err != nil {
		return View{}, err
	}
	data.Keys, data.Pager = paged(v, data.Keys)
	chosen := f.Value("role", string(api.RoleReader))
	for _, r := range api.Roles {
		data.Roles = append(data.Roles, choice{string(r), string(r) + ": " + roleTexts[r], string(r) == chosen})
	}
	data.Lives = lives(f.Value("expires_in", "90d"))
	return View{Name: "keys", Title: "API keys", Section: "Keys", Status: status, Data: data}, nil
}

// lives returns the choices of how long a key works.
func lives(chosen string) (list []choice) {
	for _, c := range []choice{{Value: "1d", Text: "1 day"}, {Value: "7d", Text: "7 days"}, {Value: "30d", Text: "30 days"}, {Value: "90d", Text: "90 days"}, {Value: "365d", Text: "365 days"}, {Text: "until it is deleted"}} {
		c.Selected = c.Value == chosen
		list = append(list, c)
	}
	return list
}

// createKey makes a key and shows its value, which cannot be read again.
func createKey(v *Visit) (View, error) {
	body := map[string]any{"name": v.field("name"), "role": v.field("role")}
	for _, name := range []string{"box", "expires_in"} {
		if text := v.field(name); text != "" {
			body[name] = text
		}
	}
	var made apiKey
	if err := v.send("POST", keysPath, body, &made); err != nil {
		f, status, err := v.refused(err, "name", "role", "box", "expires_in")
		if err != nil {
			return View{}, err
		}
		return showKeys(v, f, status, nil)
	}
	return showKeys(v, Form{}, http.StatusCreated, &made)
}

// keyForm is the data of the page of one key.
type keyForm struct {
	apiKey
	Form Form
	Made *apiKey
}

// find returns the key of a visit. Within the grace of a replaced key there are two; the later one is the current.
func findKey(v *Visit) (apiKey, error) {
	list, err := readKeys(v)
	if err != nil {
		return apiKey{}, err
	}
	for _, k := range slices.Backward(list) {
		if k.ID == v.R.PathValue("key") {
			return k, nil
		}
	}
	return apiKey{}, &api.ResponseError{Status: http.StatusNotFound, Message: "There is no such API key; it may have been deleted."}
}

func keyPage(v *Visit) (View, error) { return showKey(v, Form{}, 0, nil) }

func showKey(v *Visit, f Form, status int, made *apiKey) (View, error) {
	k, err := findKey(v)
	if err != nil {
		return View{}, err
	}
	return View{Name: "key", Title: "API key " + cmp.Or(k.Name, k.ID), Section: "Keys", Status: status, Data: keyForm{k, f, made}}, nil
}

// changeQuotas sets the quotas that the form changes. An empty field is the configured quota.
func changeQuotas(v *Visit) (View, error) {
	k, err := findKey(v)
	if err != nil {
		return View{}, err
	}
	set, wrong := map[string]int64{}, map[string]string{}
	for _, name := range quota.Names() {
		text := v.field("quota_" + name)
		n, err := strconv.ParseInt(cmp.Or(text, "0"), 10, 64)
		switch {
		case err != nil:
			wrong["quota_"+name] = "is not a number"
		case n != k.Quotas[name]:
			set[name] = n
		}
	}
	if len(wrong) > 0 {
		return showKey(v, Form{Problems: wrong, Message: "The form has a problem; see below.", Values: v.quotaValues()}, http.StatusUnprocessableEntity, nil)
	}
	if len(set) == 0 {
		return View{Location: k.Path()}, nil
	}
	err = v.send("PATCH", keysPath+"/"+url.PathEscape(k.ID), map[string]any{"quotas": set}, nil)
	if err == nil {
		return View{Location: k.Path()}, nil
	}
	f, status, err := v.refused(err)
	f.Values = v.quotaValues()
	if err != nil {
		return View{}, err
	}
	return showKey(v, f, status, nil)
}

// quotaValues returns the fields of the form of quotas.
func (v *Visit) quotaValues() map[string]string {
	values := map[string]string{}
	for name := range maps.Keys(v.R.PostForm) {
		if strings.HasPrefix(name, "quota_") {
			values[name] = v.R.PostForm.Get(name)
		}
	}
	return values
}

// replaceKey gives a key another value and shows it.
func replaceKey(v *Visit) (View, error) {
	body := map[string]any{}
	if grace := v.field("grace"); grace != "" {
		body["grace"] = grace
	}
	var made apiKey
	err := v.send("POST", keysPath+"/"+url.PathEscape(v.R.PathValue("key"))+"/rotate", body, &made)
	if err == nil {
		return showKey(v, Form{}, 0, &made)
	}
	f, status, err := v.refused(err, "grace")
	if err != nil {
		return View{}, err
	}
	return showKey(v, f, status, nil)
}

func deleteKey(v *Visit) (View, error) {
	err := v.send("DELETE", keysPath+"/"+url.PathEscape(v.R.PathValue("key")), nil, nil)
	if err == nil {
		return View{Location: Prefix + "keys"}, nil
	}
	f, status, err := v.refused(err)
	if err != nil {
		return View{}, err
	}
	return showKey(v, f, status, nil)
}
