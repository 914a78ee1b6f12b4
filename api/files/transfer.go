package files

import (
	"errors"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"strconv"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

const (
	tarMedia = "application/x-tar"
	// maxUploads is the maximum number of files in one upload.
	maxUploads = 10_000
)

// uploadForm is the form of an upload. The n-th part paths belongs to the n-th part files and precedes it.
type uploadForm struct {
	Paths []string `json:"paths" doc:"where to write each file: absolute, or below the home directory"`
	Files []string `json:"files" doc:"the files" format:"binary"`
}

type uploadQuery struct {
	User string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

type uploadView struct {
	Files []pathView `json:"files"`
}

func (e *Endpoints) upload(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	r.Body = rest.SteadyBody(w, r)
	form, err := NewParts(r)
	if err != nil {
		return rest.Reply{}, problem.Refuse(http.StatusUnsupportedMediaType, "the body must be a form; send Content-Type: multipart/form-data")
	}
	var q uploadQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	home, err := homeOf(box, q.User)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.open(r.Context(), box.ID, q.User, func(files Files) (rest.Reply, error) {
		view := uploadView{Files: []pathView{}}
		for {
			path, part, err := nextFile(form, home)
			if errors.Is(err, io.EOF) {
				if len(view.Files) == 0 {
					return rest.Reply{}, problem.Invalid("/files", "is missing: the form has no part; send parts paths and files")
				}
				return rest.Reply{Body: view}, nil
			}
			if err == nil && len(view.Files) == maxUploads {
				err = problem.Refuse(http.StatusRequestEntityTooLarge, "one upload holds at most %d files", maxUploads)
			}
			if err == nil {
				err = files.Write(path, WriteOptions{}, formReader{part})
			}
			if err != nil {
				return rest.Reply{}, bodyError(err)
			}
			view.Files = append(view.Files, pathView{displayPath(path)})
		}
	})
}

// nextFile returns the next file of a form with its path, or io.EOF at the end of the form. home is where relative paths begin.
func nextFile(form *Parts, home string) (string, *multipart.Part, error) {
	part, err := form.Next()
	if err != nil {
		return "", nil, formError(err)
	}
	if part.FormName() != "paths" {
		return "", nil, problem.Invalid("/paths", "each part files needs a part paths before it, which says where to write it")
	}
	text, err := io.ReadAll(io.LimitReader(formReader{part}, maxPath+1))
	if err != nil {
		return "", nil, err
	}
	path, err := resolve(home, "paths", string(text), false)
	if err != nil {
		return "", nil, err
	}
	part, err = form.Next()
	if errors.Is(err, io.EOF) || err == nil && part.FormName() != "files" {
		return "", nil, problem.Invalid("/files", "each part paths needs a part files after it, which is the file")
	}
	return path, part, formError(err)
}

// malformed is a syntax error of a form.
type malformed struct{ error }

func (m malformed) Unwrap() error { return m.error }

// formError marks an error as a syntax error of the form, unless the form ends early or the connection fails.
func formError(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.As(err, new(*http.MaxBytesError)) {
		return err
	}
	return malformed{err}
}

// formReader reads a part of a form and marks its syntax errors.
type formReader struct{ part io.Reader }

func (r formReader) Read(b []byte) (int, error) {
	n, err := r.part.Read(b)
	return n, formError(err)
}

// bodyError returns the error for a truncated body, or for one that is not a form or archive.
func bodyError(err error) error {
	switch {
	case err == nil:
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return problem.Refuse(http.StatusBadRequest, "the body is incomplete")
	}
	if m, ok := errors.AsType[malformed](err); ok {
		return problem.Refuse(http.StatusBadRequest, "the form cannot be read: %.200s", m.Error())
	}
	return err
}

// unpack handles POST unpack: it extracts a tar archive.
func (e *Endpoints) unpack(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	dir, user, err := e.folder(r)
	if err != nil {
		return rest.Reply{}, err
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != tarMedia {
		return rest.Reply{}, problem.Refuse(http.StatusUnsupportedMediaType, "the body must be a tar archive; send Content-Type: %s", tarMedia)
	}
	body := rest.SteadyBody(w, r)
	return e.change(r, user, dir, func(files Files) error { return bodyError(files.Unpack(dir, body)) })
}

// download handles GET download: a file is sent unchanged, a folder as a tar archive.
func (e *Endpoints) download(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	path, user, err := e.folder(r)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.with(r, user, func(files Files) (rest.Reply, error) {
		info, err := files.Stat(path, true)
		if err != nil {
			return rest.Reply{}, err
		}
		if info.IsDir {
			return e.downloadFolder(w, files, path)
		}
		return e.downloadFile(w, files, path)
	})
}

// downloadFile sends as many bytes as the file has when it is opened. If the file turns out to be shorter, the connection
// is closed, so that the client does not mistake the response for the complete file.
func (e *Endpoints) downloadFile(w http.ResponseWriter, files Files, path string) (rest.Reply, error) {
	info, content, err := files.Read(path, 0, math.MaxInt64)
	if err != nil {
		return rest.Reply{}, err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if info.Size > 0 { // files in /proc have content although their size is 0
		w.Header().Set("Content-Length", strconv.FormatInt(info.Size, 10))
		content = io.LimitReader(content, info.Size)
	}
	w.WriteHeader(http.StatusOK)
	n, err := io.CopyBuffer(rest.SteadyWriter(w), content, make([]byte, 128<<10))
	if err != nil || n < info.Size {
		panic(http.ErrAbortHandler)
	}
	return rest.Reply{Written: true}, nil
}

func (e *Endpoints) downloadFolder(w http.ResponseWriter, files Files, path string) (rest.Reply, error) {
	archive, skipped, err := files.Pack(path)
	if err != nil {
		return rest.Reply{}, err
	}
	w.Header().Set("Content-Type", tarMedia)
	w.Header().Set("Trailer", api.SkippedTrailer)
	w.WriteHeader(http.StatusOK)
	_, err = io.CopyBuffer(rest.SteadyWriter(w), archive, make([]byte, 128<<10))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	n, err := skipped()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set(api.SkippedTrailer, strconv.Itoa(n))
	return rest.Reply{Written: true}, nil
}
