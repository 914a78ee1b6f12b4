package image

import (
	"context"
	"errors"
	"os/exec"

	"github.com/google/go-containerregistry/pkg/name"
)

// Check returns why the image cannot be used, as far as that can be found out quickly. An image that exists, or whose file
// exists, can be used. For a reference, it asks the registry whether it has the image.
func (s Store) Check(ctx context.Context, imageName string) error {
	src, err := s.source(imageName)
	if err != nil {
		return err
	}
	_, err = s.open(src)
	switch {
	case err == nil || src.kind == kindArchive || src.kind == kindLayout:
		return nil
	case src.kind == kindDebian:
		if _, err := exec.LookPath("mmdebstrap"); err != nil {
			return errNoMmdebstrap
		}
		return nil
	case src.kind == kindReference:
		return s.askRegistry(ctx, src.text)
	}
	return err
}

func (s Store) askRegistry(ctx context.Context, text string) error {
	ref, err := name.ParseReference(text)
	if err != nil {
		return err
	}
	puller, err := s.newPuller()
	if err != nil {
		return err
	}
	asked, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	_, err = puller.Head(asked, ref)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case asked.Err() != nil:
		err = errors.Join(context.Cause(asked), err)
	}
	return explainPull(ref, err)
}
