package wire

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"unicode/utf8"

	"boxgate/llm"
)

// Endpoint is the use of a path of a model API.
type Endpoint uint8

// The endpoints.
const (
	Unknown Endpoint = iota // it may cost money in a way that no response reports
	Asks                    // it asks a model, and its response reports the usage
	Free                    // it asks no model
)

// endpoint describes the paths that end in a suffix.
type endpoint struct {
	suffix string
	is     Endpoint
}

// endpoints are the paths by vendor. The first suffix that fits decides.
var endpoints = map[llm.Vendor][]endpoint{
	llm.Anthropic: {{"/messages", Asks}, {":rawPredict", Asks}, {":streamRawPredict", Asks}, {"/messages/count_tokens", Free}},
	llm.OpenAI: {
		{"/completions", Asks}, {"/responses", Asks}, {"/responses/compact", Asks}, {"/embeddings", Asks},
		{"/responses/input_tokens", Free}, {"/moderations", Free},
	},
	llm.Google: {
		{":generateContent", Asks}, {":streamGenerateContent", Asks}, {":embedContent", Asks}, {":batchEmbedContents", Asks}, {":countTokens", Free},
	},
	llm.Bedrock: {
		{"/invoke", Asks}, {"/invoke-with-response-stream", Asks}, {"/converse", Asks}, {"/converse-stream", Asks}, {"/count-tokens", Free},
	},
}

// EndpointOf returns the use of a path, which has no query. Paths that servers may read differently are unknown.
func EndpointOf(v llm.Vendor, path string) Endpoint {
	if v == llm.Bedrock {
		path = bedrockPath(path)
	}
	if !plainPath(path) {
		return Unknown
	}
	for _, e := range endpoints[v] {
		if strings.HasSuffix(path, e.suffix) {
			return e.is
		}
	}
	return Unknown
}

// plainPath reports whether a path has no escapes and no segments that servers resolve or leave out.
func plainPath(path string) bool {
	if !strings.HasPrefix(path, "/") {
		return false
	}
	for segment := range strings.SplitSeq(path[1:], "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return !strings.ContainsFunc(path, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/-._~:@", c))
	})
}

// bedrockPath returns a path of Amazon Bedrock, /model/NAME/CALL, with the name as its server reads it: clients escape the colon, and the
// slash of an ARN. Other escapes stay, so that the path is not plain. The result is "" for a call of a model without Anthropic's API.
func bedrockPath(path string) string {
	before, rest, ok := strings.Cut(path, "/model/")
	last := strings.LastIndexByte(rest, '/')
	if !ok || last < 0 || strings.Contains(rest[:last], "/") || strings.Contains(rest[:last], "%25") {
		return ""
	}
	name, call := escapes.Replace(rest[:last]), rest[last:]
	if strings.HasPrefix(call, "/invoke") && !strings.Contains(name, "anthropic.") {
		return ""
	}
	return before + "/model/" + name + call
}

// escapes are the escapes in names of models at Amazon Bedrock.
var escapes = strings.NewReplacer("%3A", ":", "%3a", ":", "%2F", "/", "%2f", "/")

// Asked is a request to a model as it will be sent.
type Asked struct {
	llm.Call
	// Models are all models that the server may use for the request: that of Call, and those that it may fall back to.
	Models []string
}

// Flaws of requests, for the client.
var (
	ErrJSON       = errors.New("the body is not one JSON object in UTF-8")
	ErrKeys       = errors.New("the body has a member twice, or with a name that servers may take for another")
	ErrModel      = errors.New("the request does not name its model by a text of printable ASCII, or names two")
	ErrMax        = errors.New("the limit of output tokens is not a whole number")
	ErrBackground = errors.New("the request asks for an answer in the background, whose tokens no response reports")
	ErrTool       = errors.New("one of the tools asks a model of its own, whose tokens the response does not report")
	// ErrFallbacks has the words of Anthropic's own error for models without fallbacks.
	ErrFallbacks = errors.New("The `fallbacks` parameter is not supported, as the tokens of its models could not be counted")
	ErrQuery     = errors.New("the query asks for a response without usage, or in another form than JSON and events")
)

// Bounds of requests.
const (
	maxMembers   = 256 // of the document
	maxFallbacks = 32
	mostMax      = 1 << 40 // output tokens
	mostAnswers  = 1 << 20
	// unstatedMax is more than any model answers. It stands for each of several answers without a limit.
	unstatedMax = 1 << 17
)

// ReadCall reads a request to an endpoint that asks a model: the path and the query as sent, and the decoded body. It refuses requests that
// servers may read differently.
func ReadCall(v llm.Vendor, path, query string, body []byte) (*Asked, error) {
	if !utf8.Valid(body) || !json.Valid(body) || body[firstByte(body)] != '{' {
		return nil, ErrJSON
	}
	if v == llm.Google && narrowsResponse(query) {
		return nil, ErrQuery
	}
	if v == llm.Bedrock {
		path = bedrockPath(path)
	}
	r := request{vendor: v, path: path, seen: map[string]bool{}}
	s := scanner{to: &r, refers: &r}
	s.feed(body)
	switch {
	case !s.whole():
		return nil, ErrJSON // nested too deeply
	case r.flaw != nil:
		return nil, r.flaw
	}
	asked := &Asked{Call: llm.Call{Vendor: v, Max: r.most(), Input: uint64(len(body)), Adds: r.adds}}
	if err := r.models(asked, path); err != nil {
		return nil, err
	}
	return asked, nil
}

// firstByte returns the index of the first byte of valid JSON.
func firstByte(body []byte) (i int) {
	for strings.IndexByte(" \t\r\n", body[i]) >= 0 {
		i++
	}
	return i
}

// narrowsResponse reports whether a query changes the response so that its usage may be missing (Google's system parameters).
func narrowsResponse(query string) bool {
	for pair := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		if strings.ContainsAny(key, "%+") {
			return true
		}
		switch strings.ToLower(strings.TrimPrefix(key, "$")) {
		case "fields", "callback", "httpheaders", "httpmethod":
			return true
		case "alt":
			if value != "sse" && value != "json" {
				return true
			}
		}
	}
	return false
}

// request collects the members of a request.
type request struct {
	vendor llm.Vendor
	path   string
	seen   map[string]bool // folded places of the members of objects that matter
	flaw   error

	model     string
	hasModel  bool
	fallbacks []string
	max       uint64
	answers   uint64
	adds      bool   // the vendor adds input
	prompts   uint64 // of a list of them, each of which is answered
}

// knownKeys are the members that matter, in each spelling that the servers of a vendor accept, by the place of their object.
var knownKeys = map[llm.Vendor]map[string][]string{
	llm.Anthropic: {"": {"model", "max_tokens", "stream"}},
	llm.OpenAI: {"": {
		"model", "models", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of", "stream", "stream_options", "background",
	}},
	llm.Google: {
		"":                  {"model", "generationConfig", "generation_config"},
		"generationConfig":  {"maxOutputTokens", "max_output_tokens", "candidateCount", "candidate_count"},
		"generation_config": {"maxOutputTokens", "max_output_tokens", "candidateCount", "candidate_count"},
	},
	llm.Bedrock: {
		"":                             {"max_tokens", "inferenceConfig", "additionalModelRequestFields"},
		"inferenceConfig":              {"maxTokens"},
		"additionalModelRequestFields": {"max_tokens", "inferenceConfig"},
		"additionalModelRequestFields/inferenceConfig": {"maxTokens", "max_new_tokens"},
	},
}

// key implements [visitor].
func (r *request) key(place []byte) {
	parent, key := "", string(place)
	if i := strings.LastIndexByte(key, '/'); i >= 0 {
		parent, key = key[:i], key[i+1:]
	}
	switch {
	case (parent == "tools/[]" || parent == "additionalModelRequestFields/tools/[]") && bare(key) == "model":
		r.flaw = ErrTool
		return
	case (parent == "" || parent == "additionalModelRequestFields") && (bare(key) == "fallbacks" || bare(key) == "fallback"):
		r.flaw = ErrFallbacks
		return
	}
	known := knownKeys[r.vendor][parent]
	if known == nil || key == otherKey {
		return
	}
	if key == "__proto__" { // in JavaScript, it may stand for any member
		r.flaw = ErrKeys
		return
	}
	id := parent + "/" + key
	for _, k := range known {
		if strings.EqualFold(bare(k), bare(key)) {
			if id = parent + "/" + bare(k); !spelled(known, key) {
				r.flaw = ErrKeys
			}
			break
		}
	}
	if r.seen[id] || len(r.seen) == maxMembers {
		r.flaw = ErrKeys
		return
	}
	r.seen[id] = true
}

func spelled(known []string, key string) bool {
	for _, k := range known {
		if k == key {
			return true
		}
	}
	return false
}

var separators = strings.NewReplacer("_", "", "-", "", ".", "", " ", "")

// bare returns a key without the characters that libraries leave out when they look for a member. Case is left to the caller.
func bare(key string) string { return strings.ToLower(separators.Replace(key)) }

// value implements [visitor].
func (r *request) value(place []byte, kind byte, text []byte, cut bool) {
	r.adds = r.adds || r.addsInput(place, kind, text)
	switch string(place) {
	case "model":
		r.hasModel = true
		if r.model = r.name(kind, text, cut); r.model == "" {
			r.flaw = ErrModel
		}
	case "models":
		if r.vendor == llm.OpenAI && kind != '[' && kind != 'n' {
			r.flaw = ErrModel
		}
	case "models/[]":
		r.fallback(kind, text, cut)
	case "max_tokens", "max_completion_tokens", "max_output_tokens", "generationConfig/maxOutputTokens", "generationConfig/max_output_tokens",
		"generation_config/maxOutputTokens", "generation_config/max_output_tokens", "inferenceConfig/maxTokens",
		"additionalModelRequestFields/max_tokens", "additionalModelRequestFields/inferenceConfig/maxTokens",
		"additionalModelRequestFields/inferenceConfig/max_new_tokens":
		if n := r.number(kind, text, mostMax); r.heeds(string(place)) {
			r.max = max(r.max, n)
		}
	case "prompt/[]":
		if kind != '0' { // numbers are the tokens of one prompt
			r.prompts++
		}
	case "n", "best_of", "generationConfig/candidateCount", "generationConfig/candidate_count", "generation_config/candidateCount",
		"generation_config/candidate_count":
		r.answers = max(r.answers, r.number(kind, text, mostAnswers))
	case "generationConfig", "generation_config", "inferenceConfig", "additionalModelRequestFields", "additionalModelRequestFields/inferenceConfig":
		if (r.vendor == llm.Google || r.vendor == llm.Bedrock) && kind != '{' && kind != 'n' {
			r.flaw = ErrMax
		}
	case "background":
		if r.vendor == llm.OpenAI && kind != 'f' && kind != 'n' {
			r.flaw = ErrBackground
		}
	}
}

// heeds reports whether the endpoint limits its answers by a member of the document. Many servers leave out members that they do not know.
func (r *request) heeds(member string) bool {
	switch {
	case r.vendor == llm.Bedrock && strings.Contains(r.path, "/invoke"):
		return member == "max_tokens"
	case r.vendor == llm.Bedrock:
		return strings.Contains(member, "/")
	case r.vendor != llm.OpenAI:
		return true
	}
	if strings.HasSuffix(r.path, "/completions") {
		return member == "max_tokens" || member == "max_completion_tokens" && strings.HasSuffix(r.path, "/chat/completions")
	}
	return member == "max_output_tokens" && strings.HasSuffix(r.path, "/responses")
}

// name returns the name of a model, or "" if it is none.
func (r *request) name(kind byte, text []byte, cut bool) string {
	name := string(text)
	if kind != '"' || cut || !isModel(name) {
		return ""
	}
	return name
}

// fallback takes a model that the server may use instead.
func (r *request) fallback(kind byte, text []byte, cut bool) {
	if r.vendor != llm.OpenAI {
		return
	}
	name := r.name(kind, text, cut)
	if name == "" || len(r.fallbacks) == maxFallbacks {
		r.flaw = ErrModel
		return
	}
	r.fallbacks = append(r.fallbacks, name)
}

// isModel reports whether a text may be the name of a model.
func isModel(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' })
}

// number reads a limit. Without one, it is 0.
func (r *request) number(kind byte, text []byte, most uint64) (n uint64) {
	if kind == 'n' {
		return 0
	}
	for _, c := range text {
		if kind != '0' || c < '0' || c > '9' || n > most {
			r.flaw = ErrMax
			return 0
		}
		n = n*10 + uint64(c-'0')
	}
	if len(text) == 0 || n > most {
		r.flaw = ErrMax
	}
	return n
}

// most returns the most output tokens of all answers together; 0: not stated.
func (r *request) most() uint64 {
	n, answers := r.max, max(r.answers, 1)*max(r.prompts, 1) // at most 1<<45: a body has 1<<25 bytes
	if answers == 1 {
		return n
	}
	if n == 0 {
		n = unstatedMax
	}
	if n > math.MaxUint64/answers {
		return math.MaxUint64
	}
	return n * answers
}

// models sets the models of a request, which some vendors name in the path.
func (r *request) models(asked *Asked, path string) error {
	inPath := pathModel(path)
	if r.vendor == llm.Bedrock {
		_, rest, _ := strings.Cut(path, "/model/")
		inPath, r.hasModel = rest[:strings.LastIndexByte(rest, '/')], false
		asked.Adds = asked.Adds || strings.Contains(inPath, ":prompt/") // a stored one
	}
	asked.Others = strings.Join(r.fallbacks, " ")
	switch {
	case inPath != "" && r.vendor == llm.Google:
		if r.hasModel && r.model[strings.LastIndexByte(r.model, '/')+1:] != inPath {
			return ErrModel
		}
		r.model = inPath
	case inPath != "": // the server uses that of the path
		if r.hasModel {
			r.fallbacks = append(r.fallbacks, r.model)
		}
		r.model = inPath
	case r.vendor == llm.Google:
		return ErrModel
	}
	if r.model == "" {
		return ErrModel
	}
	asked.Model = r.model
	asked.Models = append([]string{r.model}, r.fallbacks...)
	return nil
}

// pathModel returns the model in a path: after /models/ and before a colon as at Google, or after /deployments/ as at Azure.
func pathModel(path string) string {
	last := path[strings.LastIndexByte(path, '/')+1:]
	if name, _, ok := strings.Cut(last, ":"); ok {
		return name
	}
	if _, rest, ok := strings.Cut(path, "/deployments/"); ok {
		name, _, _ := strings.Cut(rest, "/")
		return name
	}
	return ""
}
