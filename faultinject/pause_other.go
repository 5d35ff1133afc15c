//go:build !unix

package faultinject

import (
	"errors"
	"os"
)

func pauseProcess(*os.Process, bool) error { return errors.ErrUnsupported }
