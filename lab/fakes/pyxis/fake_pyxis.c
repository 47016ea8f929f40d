/* SPDX-License-Identifier: Apache-2.0 */
/* fake_pyxis: a SPANK plugin with the option by which Pyxis is known. It starts no container: the task finds the image
 * that was asked for in its environment, which shows that the option has gone from srun to slurmstepd. */
#include <stdio.h>
#include <string.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

static char image[4096];

static int take(int value, const char *argument, int remote)
{
	(void)value;
	(void)remote;
	snprintf(image, sizeof(image), "%s", argument);
	return 0;
}

static struct spank_option option = {
	"container-image", "PATH", "[fake_pyxis] the image to use for the container filesystem.", 1, 0, take
};

int slurm_spank_init(spank_t spank, int count, char **words)
{
	(void)count;
	(void)words;
	return spank_option_register(spank, &option);
}

int slurm_spank_user_init(spank_t spank, int count, char **words)
{
	(void)count;
	(void)words;
	return image[0] ? spank_setenv(spank, "FAKE_PYXIS_IMAGE", image, 1) : 0;
}
