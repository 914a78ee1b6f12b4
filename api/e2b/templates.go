package e2b

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
)

// snapshotInfo is a snapshot in boxgate's own API, as far as it is read.
type snapshotInfo struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	BoxID     string `json:"box_id"`
	CreatedBy string `json:"created_by"`
	Size      int64  `json:"size_bytes"`
	Status    string `json:"status"`
	Error     string `json:"error"`
	CreatedAt int64  `json:"created_at"`
}

// template is an image or a snapshot that sandboxes are created from.
type template struct {
	image    string // "": the default
	snapshot snapshotInfo
}

// templateID returns the ID of a template in E2B's API.
func (t template) id() string {
	switch {
	case t.snapshot.ID != "":
		return t.snapshot.ID
	case t.image == "":
		return baseTemplate
	}
	return t.image
}

// findTemplate finds a template: an image by its name, a snapshot by its ID, or the latest of the key's own snapshots by its name. The name
// of an image comes first, and the names of other keys' snapshots have no effect: otherwise whoever names a snapshot could have others
// run its content.
func (e *Endpoints) findTemplate(r *http.Request, id string) (template, error) {
	image := e.image(id)
	if image.found {
		return template{image: image.name}, nil
	}
	var list []snapshotInfo
	asked := []*http.Request{r}
	if e.Fleet { // the other hosts are asked for names, and for IDs that this host does not have
		asked = []*http.Request{ofThisHost(r), r}
	}
	for _, from := range asked {
		var err error
		if list, err = e.snapshots(from, ""); err != nil && !hasStatus(err, http.StatusForbidden) { // the key may not list snapshots
			return template{}, err
		}
		if i := slices.IndexFunc(list, func(s snapshotInfo) bool { return s.ID == id }); i >= 0 {
			return template{snapshot: list[i]}, nil
		}
	}
	found, mine := template{}, creatorOf(r)
	for _, s := range list { // oldest first
		if s.Name != "" && s.Name == id && s.CreatedBy == mine && s.Status != snapshotError {
			found.snapshot = s
		}
	}
	if found.snapshot.ID == "" {
		return template{}, api.Errorf(api.ErrNotFound, "template %q not found: it is no image of this gateway and no snapshot of this API key", problem.Clip(id))
	}
	return found, nil
}

// Template finds the template of a new sandbox: an image, or a snapshot with its ID.
func (e *Endpoints) Template(r *http.Request, id string) (snapshot string, isImage bool, err error) {
	t, err := e.findTemplate(r, id)
	return t.snapshot.ID, err == nil && t.snapshot.ID == "", err
}

// creatorOf returns the ID of the key of a request as boxgate's own API shows it for a creator.
func creatorOf(r *http.Request) string {
	if key := api.CallerOf(r.Context()).Key; key != api.OperatorKey {
		return key
	}
	return ""
}

// imageName is the name of an image, if it is one.
type imageName struct {
	name  string
	found bool
}

// image finds an image by the ID of a template.
func (e *Endpoints) image(id string) imageName {
	if id == "" || id == baseTemplate && !slices.Contains(e.Images, baseTemplate) {
		return imageName{found: true}
	}
	return imageName{id, slices.Contains(e.Images, id)}
}

// snapshots lists the snapshots of a box, or for "" all that the key sees, oldest first.
func (e *Endpoints) snapshots(r *http.Request, box string) ([]snapshotInfo, error) {
	path := "/v2/box/snapshots"
	if box != "" {
		path = boxPath(box, "snapshots")
	}
	var list struct {
		Snapshots []snapshotInfo `json:"snapshots"`
	}
	err := e.own(r, http.MethodGet, path, nil, &list)
	return list.Snapshots, err
}

// The states of a snapshot in boxgate's own API.
const (
	snapshotCreating = "creating"
	snapshotReady    = "ready"
	snapshotError    = "error"
)

// The time between two looks at a snapshot that is being taken, and the longest wait for it.
const (
	snapshotInterval = 100 * time.Millisecond
	snapshotPatience = 10 * time.Minute
)

// take takes a snapshot of a box, and waits until it is ready.
func (e *Endpoints) take(r *http.Request, id, name string) (s snapshotInfo, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), snapshotPatience)
	defer cancel()
	r = r.WithContext(ctx)
	if err := e.own(r, http.MethodPost, boxPath(id, "snapshots"), map[string]string{"name": name}, &s); err != nil {
		if hasStatus(err, http.StatusNotFound) {
			err = noBox(id)
		}
		return s, err
	}
	for s.Status == snapshotCreating {
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(snapshotInterval):
		}
		list, err := e.snapshots(r, s.BoxID)
		if err != nil {
			return s, err
		}
		i := slices.IndexFunc(list, func(other snapshotInfo) bool { return other.ID == s.ID })
		if i < 0 {
			return s, api.Errorf(api.ErrConflict, "the snapshot was deleted while it was taken")
		}
		s = list[i]
	}
	if s.Status != snapshotReady {
		return s, api.Errorf(api.ErrConflict, "the snapshot failed: %s", s.Error)
	}
	return s, nil
}

// snapshotView is a snapshot in E2B's API.
type snapshotView struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func viewSnapshot(s snapshotInfo) snapshotView {
	v := snapshotView{s.ID, []string{}}
	if s.Name != "" {
		v.Names = append(v.Names, s.Name)
	}
	return v
}

// snapshot takes a snapshot of a sandbox: its files, not its memory.
func (e *Endpoints) snapshot(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct {
		Name string `json:"name,omitempty"`
	}
	if err := e.decode(w, r, &body, true); err != nil {
		return 0, nil, err
	}
	id, err := idOf(r)
	if err != nil {
		return 0, nil, err
	}
	if e.image(body.Name).found && body.Name != "" {
		return 0, nil, problem.Invalid("/name", "%q is the name of an image, which the snapshot could not be found by; choose another name", problem.Clip(body.Name))
	}
	s, err := e.take(r, id, body.Name)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, viewSnapshot(s), nil
}

// listSnapshots lists snapshots, newest first.
func (e *Endpoints) listSnapshots(w http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := query(r, "sandboxID", "name", "limit", "nextToken")
	if err != nil {
		return 0, nil, err
	}
	p, err := pageOf(q)
	if err != nil {
		return 0, nil, err
	}
	box := q.Get("sandboxID")
	list, err := e.snapshots(r, box)
	if hasStatus(err, http.StatusNotFound) {
		list, err = nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	list = slices.DeleteFunc(list, func(s snapshotInfo) bool {
		return s.Status == snapshotError || q.Get("name") != "" && s.Name != q.Get("name")
	})
	views := []snapshotView{}
	for _, s := range cut(w, list, p, true, func(s snapshotInfo) string { return placeOf(s.CreatedAt, s.ID) }) {
		views = append(views, viewSnapshot(s))
	}
	return http.StatusOK, views, nil
}

// maxForks is the number of copies that one call makes.
const maxForks = 20

// forkResult is a copy, or the reason why it was not made.
type forkResult struct {
	Sandbox *sandboxView `json:"sandbox,omitempty"`
	Error   *errorView   `json:"error,omitempty"`
}

// fork makes copies of a sandbox: of its files and settings, not of its memory.
func (e *Endpoints) fork(w http.ResponseWriter, r *http.Request) (int, any, error) {
	body := struct {
		Timeout *int64 `json:"timeout,omitempty"`
		Count   *int   `json:"count,omitempty"`
	}{}
	if err := e.decode(w, r, &body, true); err != nil {
		return 0, nil, err
	}
	count, ttl := 1, int64(defaultTimeout)
	if body.Count != nil {
		count = *body.Count
	}
	if body.Timeout != nil {
		ttl = ttlOf(*body.Timeout)
	}
	if count < 1 || count > maxForks {
		return 0, nil, problem.Invalid("/count", "must be between 1 and %d", maxForks)
	}
	b, err := e.boxOf(r)
	if err != nil {
		return 0, nil, err
	}
	s, err := e.take(r, b.ID, "")
	if err != nil {
		return 0, nil, err
	}
	defer func() {
		_ = e.own(r.WithContext(context.WithoutCancel(r.Context())), http.MethodDelete, boxPath(b.ID, "snapshots", s.ID), nil, nil)
	}()
	ports, err := e.shared(r, b.ID)
	if err != nil {
		return 0, nil, err
	}
	results := []forkResult{}
	for range count {
		made, err := e.make(r, newBox{Ephemeral: true, TTL: ttl}, template{snapshot: s})
		if err != nil {
			results = append(results, forkResult{Error: new(viewOf(err))})
			continue
		}
		token := ""
		if ports.Access != "" {
			token, err = e.share(r, made.ID, portsBody{Access: ports.Access, Host: ports.Host, HTTPSPorts: ports.HTTPSPorts}, true)
		}
		if err != nil {
			results = append(results, forkResult{Error: new(viewOf(err))})
			continue
		}
		results = append(results, forkResult{Sandbox: new(e.opened(r, made, token))})
	}
	return http.StatusCreated, results, nil
}

// templateView is a template in a list.
type templateView struct {
	TemplateID    string    `json:"templateID"`
	BuildID       string    `json:"buildID"`
	BuildStatus   string    `json:"buildStatus"`
	BuildCount    int       `json:"buildCount"`
	CPUCount      int       `json:"cpuCount"`
	MemoryMB      int       `json:"memoryMB"`
	DiskSizeMB    int64     `json:"diskSizeMB"`
	Public        bool      `json:"public"`
	Aliases       []string  `json:"aliases"`
	Names         []string  `json:"names"`
	CreatedAt     time.Time `json:"createdAt"`
	UpdatedAt     time.Time `json:"updatedAt"`
	CreatedBy     *struct{} `json:"createdBy"`
	LastSpawnedAt *string   `json:"lastSpawnedAt"`
	SpawnCount    int       `json:"spawnCount"`
	EnvdVersion   string    `json:"envdVersion"`
}

// viewTemplate returns a template in E2B's API. Images have no time of their own.
func (e *Endpoints) viewTemplate(t template) templateView {
	size := sizes["small"]
	v := templateView{
		TemplateID: t.id(), BuildID: t.id(), BuildStatus: "ready", BuildCount: 1, CPUCount: size.cpus, MemoryMB: size.memoryMB, DiskSizeMB: e.Disks["small"] >> 20,
		Public: t.snapshot.ID == "", Aliases: []string{t.id()}, Names: []string{t.id()}, EnvdVersion: Version,
	}
	if s := t.snapshot; s.ID != "" {
		v.CreatedAt, v.UpdatedAt = time.Unix(s.CreatedAt, 0).UTC(), time.Unix(s.CreatedAt, 0).UTC()
		if v.Aliases, v.Names = []string{}, []string{}; s.Name != "" {
			v.Aliases, v.Names = []string{s.Name}, []string{s.Name}
		}
		if s.Status == snapshotCreating {
			v.BuildStatus = "building"
		}
	}
	return v
}

// listTemplates lists the images, and the snapshots that the key sees.
func (e *Endpoints) listTemplates(w http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := query(r, "teamID", "limit", "nextToken")
	if err != nil {
		return 0, nil, err
	}
	p, err := pageOf(q)
	if err != nil {
		return 0, nil, err
	}
	list, err := e.snapshots(r, "")
	if err != nil && !hasStatus(err, http.StatusForbidden) {
		return 0, nil, err
	}
	views := []templateView{e.viewTemplate(template{})}
	for _, name := range e.Images {
		views = append(views, e.viewTemplate(template{image: name}))
	}
	for _, s := range list {
		if s.Status != snapshotError {
			views = append(views, e.viewTemplate(template{snapshot: s}))
		}
	}
	return http.StatusOK, cut(w, views, p, false, func(v templateView) string { return placeOf(v.CreatedAt.Unix(), v.TemplateID) }), nil
}

// getTemplate shows a template with its only build.
func (e *Endpoints) getTemplate(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	t, err := e.findTemplate(r, r.PathValue("template"))
	if err != nil {
		return 0, nil, err
	}
	v := e.viewTemplate(t)
	build := map[string]any{"buildID": v.BuildID, "status": v.BuildStatus, "cpuCount": v.CPUCount, "memoryMB": v.MemoryMB, "createdAt": v.CreatedAt, "updatedAt": v.UpdatedAt}
	return http.StatusOK, struct {
		templateView
		Builds []any `json:"builds"`
	}{v, []any{build}}, nil
}

// getPart finds a template by its name (aliases/{alias}), or lists its tags ({template}/tags): it has one, for its only build.
func (e *Endpoints) getPart(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, alias := r.PathValue("template"), r.PathValue("template") == "aliases"
	if alias {
		id = r.PathValue("part")
	} else if r.PathValue("part") != "tags" {
		return 0, nil, api.Errorf(api.ErrNotFound, "a template has no part %q", problem.Clip(r.PathValue("part")))
	}
	t, err := e.findTemplate(r, id)
	if err != nil {
		return 0, nil, err
	}
	if alias {
		return http.StatusOK, map[string]any{"templateID": t.id(), "public": t.snapshot.ID == ""}, nil
	}
	v := e.viewTemplate(t)
	return http.StatusOK, []any{map[string]any{"tag": "default", "buildID": v.BuildID, "createdAt": v.CreatedAt}}, nil
}

// deleteTemplate deletes a snapshot. Images are the operator's.
func (e *Endpoints) deleteTemplate(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	t, err := e.findTemplate(r, r.PathValue("template"))
	if err != nil {
		return 0, nil, err
	}
	if t.snapshot.ID == "" {
		return 0, nil, api.Errorf(api.ErrForbidden, "the template %s is an image of the gateway's configuration, which this API does not change", strconv.Quote(t.id()))
	}
	return http.StatusNoContent, nil, e.own(r, http.MethodDelete, "/v2/box/snapshots", map[string][]string{"ids": {t.snapshot.ID}}, nil)
}
