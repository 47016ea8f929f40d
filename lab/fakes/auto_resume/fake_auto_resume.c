/* SPDX-License-Identifier: Apache-2.0 */
/* fake_auto_resume: a SPANK plugin with the option by which HyperPod's auto-resume is known. srun has it, sbatch and
 * salloc refuse it. It resumes nothing. */
#include <slurm/spank.h>

SPANK_PLUGIN(auto_resume, 1)

static int take(int value, const char *argument, int remote)
{
	(void)value;
	(void)argument;
	(void)remote;
	return 0;
}

static struct spank_option option = {
	"auto-resume", "1|0", "[fake_auto_resume] resume the step when a node is replaced.", 1, 0, take
};

int slurm_spank_init(spank_t spank, int count, char **words)
{
	(void)count;
	(void)words;
	return spank_context() == S_CTX_ALLOCATOR ? 0 : spank_option_register(spank, &option);
}
