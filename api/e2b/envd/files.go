package envd

import (
	"compress/gzip"
	"errors"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/files"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/quota"
)

// writtenFile is an element of the response of an upload.
type writtenFile struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

const (
	rawMedia = "application/octet-stream"
	// maxUploads is the maximum number of files in one upload.
	maxUploads = 10_000
	// metadataPrefix begins the headers with attributes of an uploaded file.
	metadataPrefix = "X-Metadata-"
)

// transfer is a request to read or write files.
type transfer struct {
	box  api.Box
	user string
	path string // absolute; empty: each part of the form names its file

	metadata map[string]string // of the files that are written, by key
	charge   func(bytes int64) error
	seen     map[string]bool // paths that were written
}

func transferOf(r *http.Request, box api.Box) (t transfer, err error) {
	query := r.URL.Query()
	t.box, t.seen = box, map[string]bool{}
	t.charge = func(bytes int64) error { return quota.ScopeOf(r.Context()).Acquire(quota.Memory, bytes) }
	if t.user, err = userOf(box, query.Get("username")); err == nil && (query.Has("path") || r.Method == http.MethodGet) {
		t.path, err = resolve(box, t.user, query.Get("path"))
	}
	return t, err
}

// download sends a file, compressed if the client accepts gzip only.
func (e *Endpoints) download(w http.ResponseWriter, r *http.Request, box api.Box) error {
	t, err := transferOf(r, box)
	if err != nil {
		return err
	}
	open, err := e.cfg.Files.OpenFiles(r.Context(), box.ID, t.user)
	if err != nil {
		return err
	}
	defer open.Close()
	info, err := open.Stat(t.path, true)
	if err == nil && info.IsDir {
		err = problem.Refuse(http.StatusBadRequest, "path %q is a directory", shown(t.path))
	}
	if err != nil {
		return err
	}
	info, content, err := open.Read(t.path, 0, math.MaxInt64)
	if err != nil {
		return err
	}
	zip := info.Size > 0 && strings.TrimSpace(r.Header.Get("Accept-Encoding")) == "gzip"
	setFileHeader(w.Header(), t.path, zip)
	if err := send(w, content, info.Size, zip); err != nil {
		panic(http.ErrAbortHandler) // so that the client does not take the response for the whole file
	}
	return nil
}

func setFileHeader(h http.Header, at string, zip bool) {
	kind := mime.TypeByExtension(path.Ext(at))
	if kind == "" {
		kind = rawMedia
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", "sandbox") // a page of a box gets no origin
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": shown(path.Base(at))}))
	h.Set("Vary", "Accept-Encoding")
	if zip {
		h.Set("Content-Encoding", "gzip")
	}
}

// send sends as many bytes as the file had when it was opened. Files in /proc have content although their size is 0.
func send(w http.ResponseWriter, content io.Reader, size int64, zip bool) error {
	if size > 0 {
		content = io.LimitReader(content, size)
	}
	out := rest.SteadyWriter(w)
	if zip {
		packed, _ := gzip.NewWriterLevel(out, gzip.BestSpeed)
		n, err := io.CopyBuffer(packed, content, make([]byte, 128<<10))
		if err == nil && n < size {
			err = io.ErrUnexpectedEOF
		}
		return errors.Join(err, packed.Close())
	}
	if size > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	}
	n, err := io.CopyBuffer(out, content, make([]byte, 128<<10))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// upload writes one file from the body, or several from a form.
func (e *Endpoints) upload(w http.ResponseWriter, r *http.Request, box api.Box) error {
	t, err := transferOf(r, box)
	if err != nil {
		return err
	}
	if t.metadata, err = metadataIn(r.Header); err != nil {
		return err
	}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	raw := media == rawMedia
	switch {
	case raw && t.path == "":
		return problem.Refuse(http.StatusBadRequest, "the query parameter path is required for a body that is no form")
	case !raw && media != "multipart/form-data":
		return problem.Refuse(http.StatusBadRequest, "the body must be multipart/form-data or %s", rawMedia)
	}
	r.Body = rest.SteadyBody(w, r)
	if r.Body, err = unpacked(r); err != nil {
		return err
	}
	open, err := e.cfg.Files.OpenFiles(r.Context(), box.ID, t.user)
	if err != nil {
		return err
	}
	defer open.Close()
	var written []writtenFile
	if raw {
		written, err = t.writeFile(open, nil, t.path, r.Body)
	} else {
		written, err = t.writeForm(open, r)
	}
	if err != nil {
		return bodyError(err)
	}
	return writeJSON(w, written)
}

// metadataIn returns the metadata in the header of an upload. Keys are in lower case, as headers have no case.
func metadataIn(h http.Header) (map[string]string, error) {
	metadata, set := map[string]string{}, map[string]string{}
	for name, values := range h {
		if key, ok := strings.CutPrefix(name, metadataPrefix); ok && len(values) == 1 {
			metadata[strings.ToLower(key)], set[attributePrefix+key] = values[0], values[0]
		} else if ok {
			return nil, problem.Invalid("/metadata", "%s is given twice", problem.Clip(name))
		}
	}
	if len(metadata) == 0 {
		return nil, nil
	}
	return metadata, files.CheckAttributes(set, nil)
}

// unpacked returns the body of a request, decompressed.
func unpacked(r *http.Request) (io.ReadCloser, error) {
	switch r.Header.Get("Content-Encoding") {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		in, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, problem.Refuse(http.StatusBadRequest, "the body is not gzip")
		}
		return body{in, r.Body}, nil
	}
	return nil, problem.Refuse(http.StatusBadRequest, "the encoding of the body must be gzip or identity")
}

// writeFile writes a file and adds it to the files written before.
func (t transfer) writeFile(open files.Files, written []writtenFile, at string, content io.Reader) ([]writtenFile, error) {
	if t.seen[shown(at)] {
		return nil, problem.Refuse(http.StatusBadRequest, "the upload has two files for %q; only the first was written", shown(at))
	}
	t.seen[shown(at)] = true
	if err := t.charge(int64(entryCost + 4*len(at))); err != nil { // in the response, and its JSON
		return nil, err
	}
	info, err := open.Stat(at, true)
	switch {
	case err == nil && info.IsDir:
		return nil, problem.Refuse(http.StatusBadRequest, "path %q is a directory", shown(at))
	case err != nil && !errors.Is(err, api.ErrNotFound):
		return nil, err
	}
	if err := open.Write(at, files.WriteOptions{Own: t.user != ""}, bodyReader{content}); err != nil { // as there, it becomes root's
		return nil, err
	}
	if err := t.label(open, at, info); err != nil {
		return nil, err
	}
	return append(written, writtenFile{shown(path.Base(at)), shown(at), "file", t.metadata}), nil
}

// label gives a written file its metadata, in place of the metadata that the file had before.
func (t transfer) label(open files.Files, at string, before files.Info) error {
	set := map[string]string{}
	for key, value := range t.metadata {
		set[attributePrefix+key] = value
	}
	var remove []string
	for key := range metadataOf(before) {
		if _, again := t.metadata[key]; !again {
			remove = append(remove, attributePrefix+key)
		}
	}
	if len(set)+len(remove) == 0 {
		return nil
	}
	return open.SetAttributes(at, set, remove)
}

// writeForm writes the parts of a form that are files.
func (t transfer) writeForm(open files.Files, r *http.Request) ([]writtenFile, error) {
	form, err := files.NewParts(r)
	if err != nil {
		return nil, problem.Refuse(http.StatusBadRequest, "the body is no form: %v", err)
	}
	written := []writtenFile{}
	for {
		part, err := form.Next()
		switch {
		case errors.Is(err, io.EOF):
			return written, nil
		case err != nil:
			return nil, malformed{err}
		case part.FormName() != "file":
			continue
		case len(written) == maxUploads:
			return nil, problem.Refuse(http.StatusBadRequest, "one upload holds at most %d files", maxUploads)
		}
		at := t.path
		if at == "" {
			if at, err = t.partPath(part); err != nil {
				return nil, err
			}
		}
		if written, err = t.writeFile(open, written, at, part); err != nil {
			return nil, err
		}
	}
}

// partPath returns the whole path in the name of a part. [multipart.Part.FileName] returns its last element only.
func (t transfer) partPath(part *multipart.Part) (string, error) {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil || params["filename"] == "" {
		return "", problem.Refuse(http.StatusBadRequest, "a file of the form has no filename")
	}
	return resolve(t.box, t.user, params["filename"])
}

// malformed is an error of the body itself.
type malformed struct{ error }

func (m malformed) Unwrap() error { return m.error }

// bodyReader marks the errors of a body, to tell them from errors of the file.
type bodyReader struct{ r io.Reader }

// Read implements [io.Reader].
func (b bodyReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = malformed{err}
	}
	return n, err
}

// bodyError returns the error for a body that is malformed or incomplete.
func bodyError(err error) error {
	m, ok := errors.AsType[malformed](err)
	if !ok {
		return err
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return problem.Refuse(http.StatusRequestTimeout, "the body did not arrive in time")
	}
	return problem.Refuse(http.StatusBadRequest, "the body cannot be read: %.200s", m.Error())
}
