package image

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"boxgate/launcher/image/agents"
)

// DebianAgents is the name of the image Debian with coding agents and their adapters.
const DebianAgents = "debian-agents"

// agentsDir is where the packages of the agents' programs are, one folder for each.
const agentsDir = "usr/local/lib/agents"

// maxDocument bounds the document of a package in npm's registry.
const maxDocument = 1 << 20

// fetchAgents downloads the programs of the agents to files on the file system of dir. The caller closes them, also after an
// error.
func (s Store) fetchAgents(ctx context.Context, dir string, progress func(string)) (list []download, err error) {
	programs, err := agents.Programs(s.Agents)
	if err != nil {
		return nil, err
	}
	for _, p := range programs {
		r := release{name: p.Agent + " " + p.Version, path: p.Archive(), digest: p.Digest}
		progress("downloading " + r.name)
		if r.digest == "" {
			if r.digest, err = askDigest(ctx, p); err != nil {
				return list, fmt.Errorf("%s: %w", r.name, err)
			}
		}
		f, err := r.fetch(ctx, dir)
		if err != nil {
			return list, fmt.Errorf("%s: %w", r.name, err)
		}
		list = append(list, download{r, f})
	}
	return list, nil
}

// askDigest asks the registry for the digest of a version that is not the pinned one.
func askDigest(ctx context.Context, p agents.Program) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, registryURL()+p.Document(), nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s for %s", registryURL(), resp.Status, p.Document())
	}
	document, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	if err != nil {
		return "", err
	}
	return agents.DigestIn(document)
}

// installAgents installs downloaded programs and the adapters into a root file system.
func (s Store) installAgents(ctx context.Context, root *os.Root, list []download) error {
	programs, err := agents.Programs(s.Agents)
	if err != nil {
		return err
	}
	for i, d := range list {
		if err := installAgent(ctx, root, programs[i], d.file); err != nil {
			return fmt.Errorf("the archive of %s: %w", d.name, err)
		}
	}
	return agents.Install(root)
}

// installAgent unpacks the archive of a program, in which everything is below "package", and links it into PATH.
func installAgent(ctx context.Context, root *os.Root, p agents.Program, archive io.Reader) error {
	dir := agentsDir + "/" + p.Agent
	z, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	if err := root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	inside, err := root.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := (&unpacker{root: inside}).layer(ctx, z); err != nil {
		return err
	}
	program := "package/" + p.File
	fi, err := inside.Lstat(program)
	if err != nil || !fi.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("it lacks the program %s", p.File), err)
	}
	errs := []error{inside.Chmod(program, 0o755), root.Symlink("../lib/agents/"+p.Agent+"/"+program, "usr/local/bin/"+p.Command)}
	if p.Unused != "" {
		errs = append(errs, inside.RemoveAll("package/"+p.Unused))
	}
	return errors.Join(errs...)
}
