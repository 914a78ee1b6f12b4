package envd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"path"
	"strings"
	"time"

	"connectrpc.com/connect"

	"boxgate/api"
	"boxgate/api/files"
	"boxgate/api/problem"
)

// filesystemService is the beginning of the paths of the procedures for files.
const filesystemService = "/filesystem.Filesystem/"

type pathRequest struct {
	Path string `json:"path"`
}

type moveRequest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

type listDirRequest struct {
	Path  string `json:"path"`
	Depth uint32 `json:"depth"`
}

type entryResponse struct {
	Entry *entryInfo `json:"entry"`
}

type listDirResponse struct {
	Entries []*entryInfo `json:"entries"`
}

// entryInfo describes a file.
type entryInfo struct {
	Name        string            `json:"name"`
	Type        string            `json:"type"`
	Path        string            `json:"path"`
	Size        text              `json:"size"`
	Mode        uint32            `json:"mode"`
	Permissions string            `json:"permissions"`
	Owner       string            `json:"owner"`
	Group       string            `json:"group"`
	Modified    string            `json:"modifiedTime"`
	Target      string            `json:"symlinkTarget,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// fileTypes are the names of types of files. A link has the type of its target.
var fileTypes = map[string]string{"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}

// shown formats a name of a file. JSON has no bytes that are not UTF-8.
func shown(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// entryOf describes a file at a path.
func entryOf(at string, info files.Info) *entryInfo {
	return &entryInfo{
		Name: shown(path.Base(at)), Type: cmp.Or(fileTypes[info.Type], "FILE_TYPE_UNSPECIFIED"), Path: shown(at), Size: text(info.Size), Mode: info.Mode,
		Permissions: info.Permissions(), Owner: info.Owner, Group: info.Group, Modified: time.Unix(0, info.Time).UTC().Format(time.RFC3339Nano),
		Target: shown(string(info.Target)), Metadata: metadataOf(info),
	}
}

// attributePrefix begins the names of the extended attributes, without their "user.", that are the metadata of a file.
const attributePrefix = "e2b."

// metadataOf returns the metadata of a file; nil without any.
func metadataOf(info files.Info) map[string]string {
	var metadata map[string]string
	for name, value := range info.Attributes {
		if key, ok := strings.CutPrefix(name, attributePrefix); ok {
			if metadata == nil {
				metadata = map[string]string{}
			}
			metadata[key] = value
		}
	}
	return metadata
}

// describe describes a file. A link has the type, mode and final target of its target.
func describe(f files.Files, at string) (*entryInfo, error) {
	info, err := f.Stat(at, false)
	if err != nil {
		return nil, err
	}
	entry := entryOf(at, info)
	if info.Type != "symlink" {
		return entry, nil
	}
	if !path.IsAbs(entry.Target) && entry.Target != "" {
		entry.Target = path.Join(path.Dir(at), entry.Target)
	}
	switch target, err := f.Stat(at, true); {
	case err == nil:
		entry.Type, entry.Mode = cmp.Or(fileTypes[target.Type], "FILE_TYPE_UNSPECIFIED"), target.Mode
	case !isFileError(err):
		return nil, err
	}
	return entry, nil
}

// isFileError reports whether an error concerns a file, so that further calls are possible.
func isFileError(err error) bool {
	status, _ := problem.StatusOf(err)
	return status < 500 || errors.Is(err, api.ErrFull)
}

func (e *Endpoints) addFilesystem() {
	unary(e, filesystemService+"Stat", "statFile", e.stat)
	unary(e, filesystemService+"ListDir", "listFiles", e.listDir)
	unary(e, filesystemService+"MakeDir", "makeDirectory", e.makeDir)
	unary(e, filesystemService+"Move", "renameFile", e.move)
	unary(e, filesystemService+"Remove", "removeFile", e.remove)
}

// with runs f with the files of the box, as the user of the call.
func (e *Endpoints) with(ctx context.Context, c *call, f func(files.Files) error) error {
	open, err := e.cfg.Files.OpenFiles(ctx, c.box.ID, c.user)
	if err != nil {
		return err
	}
	defer open.Close()
	return f(open)
}

func (e *Endpoints) stat(ctx context.Context, c *call, m *pathRequest) (*entryResponse, error) {
	res := &entryResponse{}
	at, err := resolve(c.box, c.user, m.Path)
	if err == nil {
		err = e.with(ctx, c, func(f files.Files) (err error) {
			res.Entry, err = describe(f, at)
			return err
		})
	}
	return res, err
}

// makeDir makes a directory and missing parents. The SDK expects an error for one that exists.
func (e *Endpoints) makeDir(ctx context.Context, c *call, m *pathRequest) (*entryResponse, error) {
	res := &entryResponse{}
	at, err := resolve(c.box, c.user, m.Path)
	if err != nil {
		return nil, err
	}
	return res, e.with(ctx, c, func(f files.Files) error {
		switch known, err := f.Stat(at, true); {
		case err == nil && known.IsDir:
			return connect.NewError(connect.CodeAlreadyExists, errors.New("directory already exists: "+shown(at)))
		case err == nil:
			return problem.Invalid("/path", "exists but is not a directory: %s", shown(at))
		case !errors.Is(err, api.ErrNotFound):
			return err
		}
		if err := f.MakeDir(at, true); err != nil {
			return err
		}
		res.Entry, err = describe(f, at)
		return err
	})
}

func (e *Endpoints) move(ctx context.Context, c *call, m *moveRequest) (*entryResponse, error) {
	res := &entryResponse{}
	from, err := resolve(c.box, c.user, m.Source)
	if err != nil {
		return nil, err
	}
	to, err := resolve(c.box, c.user, m.Destination)
	if err != nil {
		return nil, err
	}
	return res, e.with(ctx, c, func(f files.Files) error {
		if _, err := f.Stat(from, false); err != nil {
			return err // before parents of the destination are made
		}
		if err := f.MakeDir(path.Dir(to), true); err != nil {
			return err
		}
		if err := f.Rename(from, to); err != nil {
			return err
		}
		res.Entry, err = describe(f, to)
		return err
	})
}

// remove removes a file or directory with its contents. One that does not exist is no error.
func (e *Endpoints) remove(ctx context.Context, c *call, m *pathRequest) (*empty, error) {
	at, err := resolve(c.box, c.user, m.Path)
	if err != nil {
		return nil, err
	}
	return &empty{}, e.with(ctx, c, func(f files.Files) error {
		if err := f.Remove(at, true); !errors.Is(err, api.ErrNotFound) {
			return err
		}
		return nil
	})
}

// Bounds of a list of files.
const (
	maxEntries = 20_000
	maxDepth   = 64
	maxList    = 16 << 20 // bytes, approximately
	entryCost  = 256      // bytes of an entry without its name and path
)

// listDir lists a directory and its subdirectories to a depth, without following links.
func (e *Endpoints) listDir(ctx context.Context, c *call, m *listDirRequest) (*listDirResponse, error) {
	res := &listDirResponse{Entries: []*entryInfo{}}
	at, err := resolve(c.box, c.user, m.Path)
	if err != nil {
		return nil, err
	}
	if m.Depth > maxDepth {
		return nil, problem.Invalid("/depth", "must be at most %d", maxDepth)
	}
	return res, e.with(ctx, c, func(f files.Files) error {
		info, err := f.Stat(at, true)
		if err == nil && !info.IsDir {
			err = problem.Invalid("/path", "is not a directory: %s", shown(at))
		}
		if err != nil {
			return err
		}
		l := &listing{ctx: ctx, files: f, res: res}
		return l.add(at, int(max(1, m.Depth)), true)
	})
}

// listing is a list of files under construction.
type listing struct {
	ctx   context.Context
	files files.Files
	res   *listDirResponse
	size  int
}

// errManyFiles refuses a list that is too long. A part of it could be taken for all.
var errManyFiles = problem.Invalid("/path", "has more than %d files, or too long names; list the directories below it one by one", maxEntries)

// add adds the entries of a directory and of its subdirectories to a depth. A directory that cannot be read is an error at the top only.
func (l *listing) add(dir string, depth int, top bool) error {
	infos, more, err := l.files.List(dir, maxEntries-len(l.res.Entries)+1)
	switch {
	case err != nil && !top && isFileError(err):
		return nil
	case err != nil:
		return err
	case more || len(l.res.Entries)+len(infos) > maxEntries:
		return errManyFiles
	}
	for _, info := range infos {
		at := path.Join(dir, string(info.Name))
		entry := entryOf(at, info)
		if info.Type == "symlink" {
			if entry, err = describe(l.files, at); err != nil {
				if isFileError(err) {
					continue // it was removed meanwhile
				}
				return err
			}
		}
		if l.size += entryCost + len(entry.Name) + len(entry.Path) + len(entry.Target); l.size > maxList {
			return errManyFiles
		}
		l.res.Entries = append(l.res.Entries, entry)
		if info.Type == "directory" && depth > 1 {
			if err := l.add(at, depth-1, false); err != nil {
				return err
			}
		}
		if l.ctx.Err() != nil {
			return context.Cause(l.ctx)
		}
	}
	return nil
}

var _ json.Marshaler = text(0)
