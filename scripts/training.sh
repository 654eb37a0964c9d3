# shellcheck shell=bash
# One training by fairseq-train, for protocol.sh; sourced, not run. Reads STAGING (the arguments of every
# stage), SETTING, PROCESSES, NODES, LAUNCH and RENDEZVOUS of the script that sources it.

# train STAGE FOLDER: fairseq-train until it is done; goes on from the last whole checkpoint.
train() {
    local stage=$1 folder=$2
    arguments "$stage"
    if ! dry; then
        mkdir -p "$folder"
        same_arguments "$stage" "$folder"
    fi
    if [[ -f $folder/trained ]]; then
        say "$(basename "$folder"): trained already"
        return
    fi
    if ! dry; then
        say "$(basename "$folder"): $(repair_last "$folder/checkpoints")"
    fi
    say "$(basename "$folder"): training, ${SETTING[tokens_per_update]} tokens an update" \
        "(--update-freq ${SETTING[update_frequency]}, ${SETTING[processes]}); log in $folder/train.log"
    launcher "$(basename "$folder")"
    local failed=""
    logged "$(basename "$folder")" "$folder/train.log" "${LAUNCHER[@]}" "$PYTHON" -m fairseq_cli.train "${ARGS[@]}" ||
        failed=yes
    dry && return
    # First: torchrun fails where its processes were told to stop, and did so well.
    if [[ -f $folder/checkpoints/stopped ]]; then
        say "$(basename "$folder"): told to stop, and saved; run the same command to go on."
        exit 143
    fi
    [[ -z $failed ]] || exit 1
    touch "$folder/trained"
}

# launcher NAME: fills LAUNCHER with what starts the processes of a training; fairseq does for GPUs of one node.
launcher() {
    LAUNCHER=()
    [[ ${SETTING[torchrun]} == yes ]] || return 0
    # shellcheck disable=SC2153  # LAUNCH is a setting, LAUNCHER made of it
    read -r -a LAUNCHER <<<"$LAUNCH"
    if ((NODES > 1)); then LAUNCHER+=(env FLOATER_SAVE_ON_SIGTERM=1); fi
    LAUNCHER+=("$PYTHON" -m torch.distributed.run --nnodes "$NODES" --nproc_per_node "$((PROCESSES > 0 ? PROCESSES : 1))")
    if ((NODES > 1)); then
        LAUNCHER+=(--rdzv_backend c10d --rdzv_endpoint "$RENDEZVOUS" --rdzv_id "$1-$$")
    else
        LAUNCHER+=(--standalone)
    fi
    # shellcheck disable=SC2016  # RANK is of each process
    LAUNCHER+=(--no-python bash -c 'exec "$@" --distributed-rank "$RANK"' fairseq-train)
}

# same_arguments STAGE FOLDER: a run resumes under the arguments it was started with; GPUs may differ.
same_arguments() {
    local now=$STAGING/$1.args before=$2/$1.args
    if [[ -f $before ]]; then
        diff <(whatever_the_gpus "$before") <(whatever_the_gpus "$now") >&2 ||
            die "$2 was started with other arguments (above: < then, > now); use another --work or remove it."
    fi
    cp "$now" "$before.part"
    mv "$before.part" "$before"
}

# whatever_the_gpus FILE: the arguments that do not depend on how many GPUs there are.
whatever_the_gpus() {
    sed -E -e '/^--(update-freq|ddp-backend|distributed-(world-size|init-method|backend))$/ { N; d; }' \
        -e '/^--(cpu|fp16|load-checkpoint-on-all-dp-ranks|distributed-no-spawn)$/d' "$1"
}

repair_last() {
    "$PYTHON" -m fairseq_floater.run_folder repair "$1"
}
