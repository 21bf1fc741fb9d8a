"""Foreign weights."""


def adapt(state_dict, model):
    return state_dict
